"""Here, silent, gone: one rule, the same in the metrics and in the admin's list."""

from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from psycopg.sql import SQL, Literal

from jobreaper import conf, prune
from jobreaper.models import Worker
from jobreaper.presence import standing, statements
from jobreaper.sql import compose
from jobreaper.states import WorkerKind, WorkerState
from tests.metrics.page import scrape
from tests.rows import Sql, ago

A_MOMENT_AGO = ago(1)
HERE, SILENT, GONE = WorkerState.HERE, WorkerState.SILENT, WorkerState.GONE

# With heartbeats every 15 seconds and leases of 300.
CASES = {
    "its lock is held": (True, ago(40), True, None, HERE),
    "its lock is free": (True, ago(1), False, None, SILENT),
    "frozen: its lock is held, and nothing was heard of it": (True, ago(50), True, None, SILENT),
    "its jobs were taken back": (True, ago(1), False, ago(1), GONE),
    "it is back, and has not said so yet": (True, ago(1), True, ago(1), GONE),
    "nobody watches": (True, ago(9000), False, None, SILENT),
    "through a pooler": (False, ago(40), False, None, HERE),
    "through a pooler, silent": (False, ago(50), False, None, SILENT),
    "through a pooler, for longer than a lease": (False, ago(301), False, None, GONE),
}


def plant(
    sql: Sql,
    worker: str,
    is_direct: bool = True,
    seen_at: timedelta = A_MOMENT_AGO,
    gone_at: timedelta | None = None,
    kind: str = "work",
) -> None:
    sql(
        "INSERT INTO jobreaper_workers"
        " (worker, kind, host, pid, version, is_direct, seen_at, gone_at)"
        " SELECT %s, %s, 'h', 1, '0', %s, now + %s, now + %s FROM statement_timestamp() AS now",
        worker,
        kind,
        is_direct,
        seen_at,
        gone_at,
    )


def hold(session: psycopg.Connection[object], worker: str) -> None:
    key = compose("fragments/presence_key", {"worker": Literal(worker)})
    session.execute(SQL("SELECT pg_advisory_lock_shared({})").format(key))


@pytest.fixture
def standings(sql: Sql, second_connection: psycopg.Connection[object]) -> None:
    for worker, (is_direct, seen_at, is_held, gone_at, _) in CASES.items():
        plant(sql, worker, is_direct, seen_at, gone_at)
        if is_held:
            hold(second_connection, worker)


def test_each_stands_as_its_row_and_its_lock_say(standings: None) -> None:
    found = dict(standing.with_state(Worker.objects.all()).values_list("worker", "state"))
    assert found == {worker: state for worker, (*_, state) in CASES.items()}


def test_the_metric_counts_by_the_same_rule(standings: None, sql: Sql) -> None:
    for kind in ("celery", "hold", "robot 7", "robot 8"):
        plant(sql, kind, kind=kind)
    assert scrape().by("kind", "state", of="jobreaper_workers") == {
        ("work", "here"): 2,
        ("work", "silent"): 4,
        ("work", "gone"): 3,
        ("celery", "silent"): 1,
        ("hold", "silent"): 1,
        ("foreign", "silent"): 2,
    }


def test_every_kind_and_state_has_a_series_and_no_worker_has(sql: Sql) -> None:
    for n in range(20):
        plant(sql, f"host:{n}:token", kind=f"kind {n}")
    labels = [dict(labels) for labels in scrape().samples["jobreaper_workers"]]
    assert {(each["kind"], each["state"]) for each in labels} == {
        (kind, state) for kind in WorkerKind for state in WorkerState
    }


def test_with_presence_switched_off_nothing_is_told(
    sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(sql, "left behind")
    monkeypatch.setenv("PRESENCE_GRACE_SEC", "0")
    conf.reset()
    page = scrape()
    assert "jobreaper_workers" not in page.samples
    assert page.value("jobreaper_up") == 1


def test_a_look_at_thousands_of_workers_reads_the_locks_once(sql: Sql) -> None:
    sql(
        "INSERT INTO jobreaper_workers (worker, kind, host, pid, version)"
        " SELECT n, 'work', 'h', n, '0' FROM generate_series(1, 3000) AS n"
    )
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {statements.count(45, 300)}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "hashed SubPlan" in plan
    assert plan.count("Function Scan on pg_lock_status") == 1
    assert "loops=3000" not in plan


def test_only_rows_of_workers_that_have_ended_are_pruned(sql: Sql) -> None:
    """However long one was not seen: its row is what its jobs are taken back by."""
    day, year = 86_400, ago(365 * 86_400)
    plant(sql, "gone", seen_at=year, gone_at=ago(1.01 * day))
    plant(sql, "gone a while ago", seen_at=year, gone_at=ago(0.99 * day))
    plant(sql, "silent", seen_at=year)
    plant(sql, "pooled", is_direct=False, seen_at=ago(1.01 * day))
    plant(sql, "pooled, seen", is_direct=False, seen_at=ago(0.99 * day))
    assert prune().deleted["jobreaper_workers"] == 2
    kept = {row["worker"] for row in sql("TABLE jobreaper_workers")}
    assert kept == {"gone a while ago", "silent", "pooled, seen"}
