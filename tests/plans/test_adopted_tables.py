"""A pass over somebody else's table reads what runs, however many rows the table keeps."""

from collections.abc import Callable, Iterator

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from jobreaper.tables import table_of
from project.documents.models import ExecutorJob
from tests.plans.conftest import FINISHED, Plan

pytestmark = pytest.mark.django_db

Explain = Callable[..., Plan]

HEALTHY = 200
INDEXES = {"executor_jobs_pkey", "executor_jobs_reclaim_idx"}

FILLING = """
INSERT INTO executor_jobs (type, status, attempts, locked_at)
SELECT 'run_tsa', 'success', 1, now() - interval '30 days'
  FROM generate_series(1, {finished});

INSERT INTO executor_jobs (type, status, attempts, locked_at, heartbeat_at, locked_by)
SELECT 'run_tsa', CASE WHEN n % 2 = 0 THEN 'running' ELSE 'processing' END, 1,
       now() - interval '1 day', now(), 'executor'
  FROM generate_series(1, {healthy}) AS n;

INSERT INTO executor_jobs (type, status, attempts, locked_at, locked_by)
SELECT 'build_artifact', 'running', 1, now() - interval '1 day', 'executor'
  FROM generate_series(1, {stale}) AS n;
"""


@pytest.fixture(scope="module", params=[0, 5_000], ids="{} stale".format)
def stale(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[int]:
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(FILLING.format(finished=FINISHED, healthy=HEALTHY, stale=request.param))
        cursor.execute("VACUUM (ANALYZE) executor_jobs")
    yield request.param
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("TRUNCATE executor_jobs")
        cursor.execute("VACUUM (ANALYZE) executor_jobs")


@pytest.mark.parametrize("batch", [10, 1000])
def test_a_batch_reads_what_runs_and_changes_what_it_takes(
    stale: int, batch: int, explain: Explain
) -> None:
    plan = explain(
        table_of(ExecutorJob).reap_statement,
        {"batch": batch, "skip": [], "silent_by": "infinity", "reaper": "r"},
        "executor_jobs",
    )
    taken = min(batch, stale)
    assert plan.rows_changed >= taken
    assert "Seq Scan" not in plan.scans, plan
    assert plan.indexes <= INDEXES, plan
    assert plan.rows_read <= HEALTHY + stale + 2 * taken, plan


def test_a_dry_run_reads_what_runs(stale: int, explain: Explain) -> None:
    plan = explain(
        table_of(ExecutorJob).reap_dry_run_statement,
        {"batch": None, "skip": [], "silent_by": "infinity", "reaper": "r"},
        "executor_jobs",
    )
    assert "Seq Scan" not in plan.scans, plan
    assert plan.rows_read <= HEALTHY + stale, plan


@pytest.mark.parametrize("view", ["stale_monitor", "stale_validation"])
def test_a_view_reads_what_runs(stale: int, view: str, explain: Explain) -> None:
    plan = explain(f"SELECT * FROM executor_jobs_{view}", None, "executor_jobs")
    assert "Seq Scan" not in plan.scans, plan
    assert plan.rows_read <= HEALTHY + stale, plan
