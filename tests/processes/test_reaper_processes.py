"""Reapers as processes: killed, stopped, kept from the database. The next pass goes on."""

import json
import signal
import time
from typing import Any

import psycopg
import pytest

from jobreaper import reap
from jobreaper.reaper.sending import LOCK_TIMEOUT_SEC
from jobreaper.states import EventType
from tests.processes.children import Child
from tests.processes.conftest import ReadEvents, Row, Sql, Start
from tests.proxy import Proxy
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

# One to stop, and one in which a busy machine gets around to ending a process.
STOPS_WITHIN_SEC = 2.0


def plant_expired(sql: Sql, count: int, table: str = "jobs") -> list[int]:
    rows = sql(
        f"INSERT INTO {table} (status, locked_by, claimed_at, lease_expires_at, attempt_count,"
        " lease_epoch) SELECT 'processing', 'dead', now() - interval '1 hour',"
        " now() - interval '1 minute', 1, 1 FROM generate_series(1, %s) RETURNING id",
        count,
    )
    return [row["id"] for row in rows]


def loop(start: Start, *options: str, **environment: str) -> Child:
    """A running reaper, past its first pass."""
    reaper = start("manage.py", "reap", "--loop", "--format", "json", *options, **environment)
    assert json.loads(reaper.answer())["errors"] == []
    return reaper


def lock_jobs(client: psycopg.Connection[Any]) -> None:
    """What a migration does to a table, until the client rolls back."""
    client.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")


def counts(sql: Sql) -> Row:
    [found] = sql(
        "SELECT count(*) FILTER (WHERE status = 'processing') AS left,"
        " count(*) FILTER (WHERE status = 'queued' AND lease_epoch = 2) AS requeued,"
        " (SELECT count(*) FROM job_events) AS events,"
        " (SELECT count(DISTINCT job_id) FROM job_events) AS jobs_with_events FROM jobs"
    )
    return found


def test_a_pass_killed_in_the_middle_leaves_the_rest_to_the_next_one(
    start: Start, sql: Sql
) -> None:
    """procrastinate#1408: nothing a dead reaper held is in the way."""
    total = 3000
    plant_expired(sql, total)
    reaper = start("manage.py", "reap", "--batch-size", "5")
    until(lambda: counts(sql)["requeued"])
    reaper.kill()
    reaped = until(lambda: counts(sql)["requeued"])
    assert reaped < total

    # A batch that the server was still working on when its client died may yet be committed.
    until(lambda: reap().all_errors == [] and counts(sql)["left"] == 0)
    assert counts(sql) == {
        "left": 0,
        "requeued": total,
        "events": total,
        "jobs_with_events": total,
    }


def stops_at_once_and_cleanly(reaper: Child, how: signal.Signals = signal.SIGTERM) -> bool:
    asked = time.monotonic()
    reaper.process.send_signal(how)
    assert reaper.process.wait(30) == 0
    return time.monotonic() - asked < STOPS_WITHIN_SEC


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_a_reaper_between_passes_stops_at_once_and_cleanly(
    how: signal.Signals, start: Start
) -> None:
    reaper = loop(start, REAPER_INTERVAL_SEC="60")
    assert stops_at_once_and_cleanly(reaper, how)
    assert reaper.log.endswith("stopped\n")


def test_a_reaper_that_waits_for_a_lock_stops_at_once_and_cleanly(
    start: Start, second_connection: psycopg.Connection[Any], sql: Sql
) -> None:
    reaper = loop(start)
    lock_jobs(second_connection)
    until(lambda: sql("SELECT 1 FROM pg_locks WHERE relation = 'jobs'::regclass AND NOT granted"))
    assert stops_at_once_and_cleanly(reaper)


def test_a_reaper_whose_database_does_not_answer_stops_at_once_and_cleanly(
    start: Start, proxy: Proxy
) -> None:
    reaper = loop(start, DATABASE_URL=proxy.url, REAPER_INTERVAL_SEC="0.1")
    proxy.hang()
    until(lambda: proxy.stuck)
    assert stops_at_once_and_cleanly(reaper)


def test_a_reaper_in_mid_pass_stops_at_once_and_commits_whole_batches(
    start: Start, sql: Sql
) -> None:
    total = 3000
    reaper = loop(start, "--batch-size", "5")
    plant_expired(sql, total)
    until(lambda: counts(sql)["requeued"])
    assert stops_at_once_and_cleanly(reaper)
    after = counts(sql)
    assert 0 < after["requeued"] < total
    assert after["requeued"] == after["events"] == after["jobs_with_events"]


def test_a_loop_goes_on_after_a_pass_with_errors_and_the_other_tables_are_reaped(
    start: Start, sql: Sql
) -> None:
    [job] = plant_expired(sql, 1)
    sql("ALTER TABLE jobs RENAME TO jobs_away")
    try:
        reaper = start("manage.py", "reap", "--loop", "--format", "json")
        [other] = plant_expired(sql, 1, "asr_jobs")
        result = json.loads(reaper.answer())
        assert any("jobs" in error for error in result["errors"])
        until(lambda: sql("SELECT 1 FROM asr_jobs WHERE status = 'queued' AND id = %s", other))
    finally:
        sql("ALTER TABLE jobs_away RENAME TO jobs")
    until(lambda: sql("SELECT 1 FROM jobs WHERE status = 'queued' AND id = %s", job))
    assert reaper.terminate() == 0


@pytest.mark.slow
def test_a_loop_goes_on_after_a_lock_that_outlasts_every_retry(
    start: Start, second_connection: psycopg.Connection[Any], sql: Sql, events: ReadEvents
) -> None:
    reaper = loop(start)
    [job] = plant_expired(sql, 1)
    lock_jobs(second_connection)
    [other] = plant_expired(sql, 1, "asr_jobs")

    def failed() -> bool:
        return any("lock timeout" in error for error in json.loads(reaper.answer())["errors"])

    until(failed, timeout_sec=20 * LOCK_TIMEOUT_SEC)
    assert sql("SELECT 1 FROM asr_jobs WHERE status = 'queued' AND id = %s", other)
    second_connection.rollback()
    until(lambda: events(job) == [EventType.REAPER_REQUEUED])
    assert reaper.terminate() == 0


@pytest.mark.slow
def test_a_loop_goes_on_after_the_database_was_away_for_longer_than_every_retry(
    start: Start, proxy: Proxy, sql: Sql, events: ReadEvents
) -> None:
    reaper = loop(start, DATABASE_URL=proxy.url)
    proxy.cut()
    [job] = plant_expired(sql, 1)
    until(lambda: json.loads(reaper.answer())["errors"])
    proxy.mend()
    until(lambda: events(job) == [EventType.REAPER_REQUEUED])
    assert reaper.terminate() == 0
