"""`reaper.requeues`, `reaper.failures`, `reaper.scan_duration_ms`."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from jobreaper import reap
from jobreaper.metrics import otel
from jobreaper.policies import MOST_STAGES, OTHER_STAGE
from jobreaper.reaper import dead_workers
from jobreaper.tables import job_tables, table_of
from project.media.models import Job
from tests.rows import Rows
from tests.tracing.conftest import Measured

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def jobs(sql: Callable[..., Any]) -> Rows:
    return Rows(sql, "jobs")


def test_a_pass_is_counted_by_table_and_stage(measured: Measured, jobs: Rows) -> None:
    for stage, attempts in (("clip", 3), ("clip", 3), (None, 3), ("clip", 1), ("burnin", 1)):
        jobs.plant_expired(stage=stage, max_attempts=attempts)
    reap()
    points = measured.points()
    assert points["reaper.requeues"] == {("jobs", "clip"): 2, ("jobs", ""): 1}
    assert points["reaper.failures"] == {("jobs", "clip"): 1, ("jobs", "burnin"): 1}


def test_the_time_of_each_table_is_measured(measured: Measured) -> None:
    name = "reaper.scan_duration_ms"
    result = reap()
    assert measured.points("sum")[name] == {
        (table.name, ""): result.tables[table.name].duration_ms for table in job_tables()
    }
    reap([Job])
    reap([Job])
    assert measured.points("count")[name] == {("jobs", ""): 2}


def test_what_a_dead_worker_held_is_not_the_reapers(measured: Measured, jobs: Rows) -> None:
    jobs.plant_running(locked_by="gone")
    assert len(dead_workers.give_back(table_of(Job), "gone", "killed")) == 1
    assert "reaper.requeues" not in measured.points()


def test_a_reap_that_is_rolled_back_is_not_counted(measured: Measured, jobs: Rows) -> None:
    jobs.plant_expired()
    with transaction.atomic():
        assert reap([Job]).requeued == 1
        transaction.set_rollback(True)
    assert "reaper.requeues" not in measured.points()


def test_a_stage_for_each_job_is_not_a_series_for_each_job(
    measured: Measured, jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(otel._other_stages, "jobs", set())
    for n in range(MOST_STAGES + 7):
        jobs.plant_expired(stage=f"stage-{n}")
    jobs.plant_expired(stage="clip")
    reap([Job])
    points = measured.points()["reaper.requeues"]
    assert len(points) == MOST_STAGES + 2
    assert points["jobs", OTHER_STAGE] == 7
    assert points["jobs", "clip"] == 1
