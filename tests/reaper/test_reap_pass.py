"""One pass: what it returns and leaves on record, when it holds back, how it shares its time."""

import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from jobreaper import UnknownTable, claim, reap, worker_id
from jobreaper.models import ReaperPass
from jobreaper.reaper import hold
from jobreaper.reaper.sending import LOCK_TIMEOUT_SEC, STATEMENT_TIMEOUT_SEC
from jobreaper.sql import render
from jobreaper.states import Trigger
from jobreaper.tables import job_tables
from project.media.models import AsrJob, Job
from tests.rows import Rows, Sql, ago


def show(setting: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW {setting}")
        value: str = cursor.fetchone()[0]
    return value


def passes(sql: Sql) -> list[dict[str, Any]]:
    return sql("SELECT * FROM jobreaper_passes ORDER BY id")


# What comes back.


def test_the_result_names_every_job_by_table(jobs: Rows, asr_jobs: Rows) -> None:
    requeued = [jobs.plant_expired() for _ in range(2)]
    failed = jobs.plant_expired(attempt_count=3)
    asr = asr_jobs.plant_expired()
    result = reap()
    assert set(result.tables) == {table.name for table in job_tables()}
    assert sorted(result.requeued_ids["jobs"]) == requeued
    assert result.failed_ids["jobs"] == [failed]
    assert result.requeued_ids["asr_jobs"] == [asr]
    assert result.failed_ids["asr_jobs"] == []
    assert (result.requeued, result.failed) == (3, 1)
    assert not result.held
    assert not result.dry_run
    assert result.all_errors == []
    assert 0 < result.duration_ms < 60_000


def test_a_pass_may_be_kept_to_some_tables(jobs: Rows, asr_jobs: Rows) -> None:
    jobs.plant_expired()
    asr = asr_jobs.plant_expired()
    assert reap(["asr_jobs"]).requeued_ids == {"asr_jobs": [asr]}
    assert set(reap([Job, "asr_jobs", AsrJob]).tables) == {"jobs", "asr_jobs"}


def test_a_pass_over_no_tables_does_nothing(jobs: Rows) -> None:
    jobs.plant_expired()
    assert reap([]).tables == {}


@pytest.mark.parametrize("table", ["job", "Jobs", "media.Job", "job_events", ReaperPass])
def test_an_unknown_table_is_refused_and_nothing_is_reaped(jobs: Rows, table: Any) -> None:
    key = jobs.plant_expired()
    with pytest.raises(UnknownTable, match=r"asr_jobs, .*jobs"):
        reap(["jobs", table])
    assert jobs.row(key)["status"] == "processing"


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_of_nothing_is_refused(transactional_db: None, batch_size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        reap(batch_size=batch_size)


# What is left on record.


def test_a_pass_leaves_one_row(jobs: Rows, asr_jobs: Rows, sql: Sql) -> None:
    jobs.plant_expired()
    jobs.plant_expired(attempt_count=3)
    asr_jobs.plant_expired()
    before = jobs.now()
    result = reap([Job, AsrJob], trigger=Trigger.COMMAND)
    [row] = passes(sql)
    assert before <= row["started_at"] <= jobs.now()
    assert abs(row["duration_ms"] - result.duration_ms) < 1000
    assert row["trigger"] == "command"
    assert row["reaper"] == worker_id()
    assert row["counts"] == {
        "jobs": {"requeued": 1, "failed": 1},
        "asr_jobs": {"requeued": 1, "failed": 0},
    }
    assert (row["requeued"], row["failed"]) == (2, 1)
    assert (row["held"], row["held_reason"], row["error"]) == (False, None, None)


def test_a_pass_with_nothing_to_do_is_on_record_too(sql: Sql) -> None:
    reap([Job])
    [row] = passes(sql)
    assert row["counts"] == {"jobs": {"requeued": 0, "failed": 0}}
    assert row["trigger"] == "python"


# A dry run.


def test_a_dry_run_gives_the_same_verdicts_and_changes_nothing(
    jobs: Rows, asr_jobs: Rows, sql: Sql
) -> None:
    jobs.plant_expired()
    jobs.plant_expired(attempt_count=3)
    jobs.plant_running()
    asr_jobs.plant_expired()
    before = (jobs.all(), asr_jobs.all())
    dry = reap(dry_run=True)
    assert dry.dry_run
    assert (jobs.all(), asr_jobs.all()) == before
    assert sql("TABLE job_events") == []
    assert passes(sql) == []
    result = reap()
    assert by_table(dry.requeued_ids) == by_table(result.requeued_ids)
    assert by_table(dry.failed_ids) == by_table(result.failed_ids)


def by_table(ids: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {table: sorted(keys, key=str) for table, keys in ids.items()}


def test_a_dry_run_looks_past_one_batch(jobs: Rows) -> None:
    for _ in range(5):
        jobs.plant_expired()
    assert reap(dry_run=True, batch_size=2).requeued == 5


def test_a_dry_run_locks_nothing(jobs: Rows, second_connection: psycopg.Connection[Any]) -> None:
    key = jobs.plant_expired()
    second_connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [key])
    with transaction.atomic():
        assert reap([Job], dry_run=True).requeued_ids == {"jobs": [key]}
        # The other may go on and write what it has locked.
        second_connection.execute("UPDATE jobs SET stage = 'clip' WHERE id = %s", [key])


def test_a_dry_run_holds_back_like_any_pass(jobs: Rows, restarted: None) -> None:
    jobs.plant_expired()
    result = reap(dry_run=True)
    assert result.held
    assert result.requeued == 0


# Holding back.


@pytest.fixture
def restarted(sql: Sql, settings: Settings) -> None:
    """PostgreSQL restarted a moment ago: a pass had run before, and the grace is not over."""
    sql(
        "INSERT INTO jobreaper_passes (started_at, reaper, trigger, counts)"
        " VALUES (pg_postmaster_start_time() - interval '1 minute', 'r', 'beat', '{}')"
    )
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 360 * 86_400}


def test_after_a_restart_a_pass_is_held_and_says_why(jobs: Rows, restarted: None, sql: Sql) -> None:
    key = jobs.plant_expired()
    before = jobs.row(key)
    result = reap()
    assert result.held
    assert result.held_reason is not None
    assert result.held_reason.startswith("PostgreSQL came up ")
    assert "RECOVERY_GRACE_SEC" in result.held_reason
    assert (result.requeued, result.failed, result.all_errors) == (0, 0, [])
    assert jobs.row(key) == before
    row = passes(sql)[-1]
    assert (row["held"], row["held_reason"]) == (True, result.held_reason)


def test_a_held_pass_is_no_reason_to_hold_the_next(
    jobs: Rows, restarted: None, settings: Settings
) -> None:
    key = jobs.plant_expired()
    assert reap().held
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 0.001}
    assert reap().requeued_ids["jobs"] == [key]


def test_an_operator_may_reap_all_the_same(jobs: Rows, restarted: None, sql: Sql) -> None:
    key = jobs.plant_expired()
    assert reap(hold=False).requeued_ids["jobs"] == [key]
    assert not passes(sql)[-1]["held"]


def test_without_a_grace_nothing_is_held(jobs: Rows, restarted: None, settings: Settings) -> None:
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 0}
    assert reason_to_hold() is None
    assert not reap().held


def test_a_server_no_pass_had_seen_before_its_start_is_not_waited_for(
    jobs: Rows, sql: Sql, settings: Settings
) -> None:
    # A fresh installation, or a restored backup: no worker of it is about to beat.
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 360 * 86_400}
    key = jobs.plant_expired()
    assert reap().requeued_ids["jobs"] == [key]
    assert reason_to_hold() is None


def test_when_the_grace_is_over_passes_go_on(restarted: None, settings: Settings, sql: Sql) -> None:
    # On a machine whose server has crashed the time begins with this pass.
    ReaperPass.objects.create(reaper="r", trigger="beat", counts={})
    up_sec = seconds_up(sql)
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": up_sec}
    assert reason_to_hold() is None
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": up_sec + 60}
    assert reason_to_hold() is not None


def test_somebody_who_resets_statistics_does_not_hold_the_passes(restarted: None, sql: Sql) -> None:
    ReaperPass.objects.create(reaper="r", trigger="beat", counts={})
    before = seconds_up(sql)
    sql("SELECT pg_stat_reset_shared('bgwriter')")
    assert seconds_up(sql) >= before > 0


def seconds_up(sql: Sql) -> float:
    [row] = sql(render("statements/server_back"))
    return float(row["up_sec"])


def reason_to_hold() -> str | None:
    return hold.reason_to_hold(connection)


# Batches and time.


def test_a_pass_goes_on_until_nothing_is_left(jobs: Rows) -> None:
    planted = [jobs.plant_expired(lease_expires_at=ago(100 - n)) for n in range(7)]
    seen: list[tuple[str, int]] = []
    result = reap([Job], batch_size=2, progress=lambda table, n: seen.append((table, n)))
    assert sorted(result.requeued_ids["jobs"]) == planted
    assert seen == [("jobs", 2), ("jobs", 4), ("jobs", 6)]


def test_a_batch_is_one_statement(jobs: Rows) -> None:
    for _ in range(4):
        jobs.plant_expired()
    reap([Job], dry_run=True)
    with CaptureQueriesContext(connection) as queries:
        reap([Job], batch_size=4, hold=False)
    sent = [query["sql"] for query in queries if "FROM lost AS job" in query["sql"]]
    # The full one, and the one that finds nothing more.
    assert len(sent) == 2


# An index may bring the order along, or not be used at all.
@pytest.mark.parametrize("index", ["on", "off"])
def test_the_longest_overdue_are_reaped_first(
    jobs: Rows, sql: Sql, settings: Settings, index: str
) -> None:
    settings.JOBREAPER = {"REAPER_INTERVAL_SEC": 0.000001, "RECOVERY_GRACE_SEC": 0}
    recent, oldest, older = (jobs.plant_expired(lease_expires_at=ago(s)) for s in (5, 50, 20))
    with connection.cursor() as cursor:
        cursor.execute(f"SET enable_indexscan = {index}; SET enable_bitmapscan = {index}")
    try:
        # With its time spent, a pass stops after one batch and leaves the rest to the next.
        order = [reap([Job], batch_size=1).requeued_ids["jobs"] for _ in range(4)]
    finally:
        connection.close()
    assert order == [[oldest], [older], [recent], []]


def test_a_pass_whose_time_is_spent_leaves_the_rest_to_the_next(
    jobs: Rows, asr_jobs: Rows, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.JOBREAPER = {"REAPER_INTERVAL_SEC": 0.000001, "RECOVERY_GRACE_SEC": 0}
    for _ in range(3):
        jobs.plant_expired()
    asr = asr_jobs.plant_expired()
    with caplog.at_level(logging.INFO, "jobreaper.reaper"):
        result = reap([Job, AsrJob], batch_size=2)
    assert len(result.requeued_ids["jobs"]) == 2
    # Another table has its turn all the same.
    assert result.requeued_ids["asr_jobs"] == [asr]
    assert result.all_errors == []
    assert "time is spent" in caplog.text
    assert len(reap([Job]).requeued_ids["jobs"]) == 1


def test_silent_jobs_share_the_batch_with_expired_ones(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"STAGES": {"old": {"ttl": "10m"}}, "RECOVERY_GRACE_SEC": 0}
    expired = [jobs.plant_expired(lease_expires_at=ago(100 - n)) for n in range(3)]
    silent = [
        jobs.plant_expired(
            stage="old",
            lease_expires_at=None,
            claimed_at=ago(3600),
            last_heartbeat_at=ago(3600),
        )
        for _ in range(3)
    ]
    seen: list[int] = []
    result = reap([Job], batch_size=2, progress=lambda _, n: seen.append(n))
    assert sorted(result.requeued_ids["jobs"]) == sorted(expired + silent)
    assert seen == [2, 4, 6]


# Timeouts, for the pass only.


@pytest.fixture
def timeouts_seen(sql: Sql) -> Iterator[list[str]]:
    """What the timeouts were inside the statement that reaped a job, as a trigger saw them."""
    sql("""
        CREATE FUNCTION note_timeouts() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            NEW.payload = jsonb_build_array(
                current_setting('lock_timeout'), current_setting('statement_timeout'));
            RETURN NEW;
        END $$
    """)
    sql("CREATE TRIGGER note BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION note_timeouts()")
    yield [f"{LOCK_TIMEOUT_SEC * 1000:.0f}ms", f"{STATEMENT_TIMEOUT_SEC:.0f}s"]
    sql("DROP FUNCTION note_timeouts CASCADE")


def test_timeouts_are_set_for_the_pass_and_not_after_it(
    jobs: Rows, timeouts_seen: list[str]
) -> None:
    key = jobs.plant_expired()
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '7s'; SET statement_timeout = '8s'")
    try:
        reap([Job])
        assert (show("lock_timeout"), show("statement_timeout")) == ("7s", "8s")
    finally:
        connection.close()
    assert jobs.row(key)["payload"] == timeouts_seen


def test_timeouts_are_put_back_in_a_transaction_of_the_callers(
    jobs: Rows, timeouts_seen: list[str]
) -> None:
    key = jobs.plant_expired()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '7s'; SET LOCAL statement_timeout = '8s'")
        reap([Job])
        assert (show("lock_timeout"), show("statement_timeout")) == ("7s", "8s")
    assert (show("lock_timeout"), show("statement_timeout")) == ("0", "0")
    assert jobs.row(key)["payload"] == timeouts_seen


def test_a_pass_in_a_transaction_of_the_callers_is_rolled_back_with_it(
    jobs: Rows, sql: Sql
) -> None:
    key = jobs.plant_expired()
    before = jobs.row(key)
    with transaction.atomic():
        assert reap([Job]).requeued == 1
        transaction.set_rollback(True)
    assert jobs.row(key) == before
    assert jobs.events(key) == []
    assert passes(sql) == []


def test_ten_minutes_of_skew_on_a_workers_clock_change_nothing(
    jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    key = jobs.plant()
    for skew in (600, -600):
        monkeypatch.setattr(time, "time", lambda skew=skew: now() + skew)
        lease = claim(Job, key)
        assert lease is not None
        lease.heartbeat()
        row = jobs.row(key)
        assert row["lease_expires_at"] - row["last_heartbeat_at"] == timedelta(seconds=400)
        assert reap([Job]).requeued == 0
        lease.release()
