"""The counters say what the events say, by table and stage, whatever happens."""

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.test import override_settings

from jobreaper import LeaseLost, claim, reap
from jobreaper.control.retention import prune
from jobreaper.protocol.holding import holding_of
from jobreaper.reaper import dead_workers, totals
from jobreaper.schema import functions
from jobreaper.states import EventType
from jobreaper.tables import table_of
from project.documents.models import ExecutorJob
from project.media.models import Job
from tests.metrics.page import Sql, events, increase, scrape
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("transactional_db")

REQUEUED = [EventType.REAPER_REQUEUED]
FAILED = [kind for kind in EventType if kind.startswith("reaper:failed")]


def plant_seven_and_five(jobs: Rows, asr_jobs: Rows) -> None:
    """Plant jobs of which a pass requeues 7 and fails 5."""
    for stage, requeues, fails in (("clip", 3, 1), ("burnin", 1, 2), (None, 1, 0), ("new", 0, 1)):
        for _ in range(requeues):
            jobs.plant_expired(stage=stage)
        for _ in range(fails):
            jobs.plant_expired(stage=stage, max_attempts=1)
    asr_jobs.plant_expired(stage="asr")
    asr_jobs.plant_expired(stage="asr")
    asr_jobs.plant_expired(stage="asr", max_attempts=1)


SEVEN = {("jobs", "clip"): 3, ("jobs", "burnin"): 1, ("jobs", ""): 1, ("asr_jobs", "asr"): 2}
FIVE = {("jobs", "clip"): 1, ("jobs", "burnin"): 2, ("jobs", "new"): 1, ("asr_jobs", "asr"): 1}


def test_a_pass_that_requeues_7_and_fails_5_makes_a_difference_of_7_and_5(
    jobs: Rows, asr_jobs: Rows, sql: Sql
) -> None:
    jobs.plant_expired(stage="clip")
    reap()
    sql("DELETE FROM job_events")
    plant_seven_and_five(jobs, asr_jobs)
    before = scrape()
    result = reap()
    after = scrape()

    assert (result.requeued, result.failed) == (7, 5)
    assert increase(before, after, "reaper_requeues_total") == SEVEN == events(sql, REQUEUED)
    assert increase(before, after, "reaper_failures_total") == FIVE == events(sql, FAILED)
    latency = "reaper_detection_latency_seconds"
    assert after.value(f"{latency}_count") - before.value(f"{latency}_count") == 12
    assert 12 * 41 <= after.value(f"{latency}_sum") - before.value(f"{latency}_sum") < 12 * 60


def test_pruning_events_and_passes_takes_nothing_from_the_counters(
    jobs: Rows, asr_jobs: Rows, sql: Sql
) -> None:
    plant_seven_and_five(jobs, asr_jobs)
    reap()
    before = scrape()
    sql("UPDATE job_events SET at = now() - interval '1 year'")
    sql("UPDATE jobreaper_passes SET started_at = now() - interval '1 year'")
    prune()
    assert sql("SELECT FROM job_events") == sql("SELECT FROM jobreaper_passes") == []
    sql("DELETE FROM jobs")
    after = scrape()
    for name in (
        "reaper_requeues_total",
        "reaper_failures_total",
        "reaper_detection_latency_seconds_sum",
        "reaper_scan_duration_seconds_sum",
        "reaper_last_success_timestamp_seconds",
    ):
        assert after.samples[name] == before.samples[name], name
    assert after.by("table", "stage", of="reaper_requeues_total") == SEVEN


def test_two_reapers_at_once_count_each_job_once(jobs: Rows, sql: Sql) -> None:
    jobs.sql(
        """INSERT INTO jobs (status, stage, locked_by, lease_expires_at, max_attempts, lease_epoch)
           SELECT 'processing', 'clip', 'w', now() - interval '1 s', n %% 3, 1
             FROM generate_series(1, 400) AS n WHERE %s""",
        True,
    )
    before = scrape()
    start = threading.Barrier(2)
    found: list[int] = []

    def reaper() -> None:
        start.wait()
        try:
            result = reap(batch_size=10)
            assert not result.all_errors
            found.append(result.requeued + result.failed)
        finally:
            connection.close()

    reapers = [threading.Thread(target=reaper) for _ in range(2)]
    for thread in reapers:
        thread.start()
    for thread in reapers:
        thread.join()
    after = scrape()

    assert sum(found) == 400
    requeued = increase(before, after, "reaper_requeues_total")
    failed = increase(before, after, "reaper_failures_total")
    assert requeued == events(sql, REQUEUED)
    assert failed == events(sql, FAILED)
    assert sum(requeued.values()) + sum(failed.values()) == 400
    assert after.value("reaper_scan_duration_seconds_count", table="jobs") == 2


def test_a_reap_that_is_rolled_back_is_not_counted(jobs: Rows, sql: Sql) -> None:
    jobs.plant_expired()
    before = scrape()
    with transaction.atomic():
        assert reap([Job]).requeued == 1
        transaction.set_rollback(True)
    assert increase(before, scrape(), "reaper_requeues_total") == {} == events(sql, REQUEUED)


def test_a_dry_run_counts_nothing(jobs: Rows) -> None:
    jobs.plant_expired()
    before = scrape()
    assert reap(dry_run=True).requeued == 1
    assert scrape().samples["reaper_requeues_total"] == before.samples["reaper_requeues_total"]
    assert (
        scrape().samples["reaper_scan_duration_seconds_count"]
        == (before.samples["reaper_scan_duration_seconds_count"])
    )


@pytest.mark.parametrize("expired_at", ["-infinity", "4000-01-01 BC"])
def test_a_lease_that_ended_in_no_sensible_time_is_counted(
    expired_at: str, jobs: Rows, sql: Sql
) -> None:
    for _ in range(50):
        jobs.plant_expired(stage="clip", lease_expires_at=expired_at)
    for _ in range(2):
        sql("UPDATE jobs SET status = 'processing', lease_expires_at = %s", expired_at)
        sql("UPDATE jobs SET next_earliest_run_at = NULL, attempt_count = 1")
        assert reap([Job]).all_errors == []
    page = scrape()
    assert page.by("stage", of="reaper_requeues_total") == {"clip": 100}
    assert page.value("reaper_detection_latency_seconds_count") == 100
    assert page.value("jobreaper_up") == 1


def test_jobs_of_an_adopted_table_are_counted_by_their_type(sql: Sql) -> None:
    for attempts in (1, 1, 10):
        sql(
            """INSERT INTO executor_jobs (type, status, locked_at, attempts)
               VALUES ('run_tsa', 'running', now() - interval '35 min', %s)""",
            attempts,
        )
    before = scrape()
    reap(["executor_jobs"])
    after = scrape()
    assert increase(before, after, "reaper_requeues_total") == {("executor_jobs", "run_tsa"): 2}
    assert increase(before, after, "reaper_failures_total") == {("executor_jobs", "run_tsa"): 1}
    assert increase(before, after, "reaper_requeues_total") == events(sql, REQUEUED)
    assert after.value("reaper_detection_latency_seconds_sum") >= 3 * 300


def test_what_a_dead_worker_held_is_counted_by_its_outcome(jobs: Rows, sql: Sql) -> None:
    jobs.plant_running(stage="clip", locked_by="gone")
    jobs.plant_running(stage="clip", locked_by="gone", max_attempts=1)
    jobs.plant_running(stage="clip", locked_by="gone", max_attempts=1)
    before = scrape()
    dead_workers.give_back(table_of(Job), "gone", "killed by SIGKILL")
    after = scrape()
    labels = {"table": "jobs", "stage": "clip"}
    lost = "jobreaper_worker_lost_total"
    assert after.value(lost, **labels, outcome="requeued") == 1
    assert after.value(lost, **labels, outcome="failed") == 2
    assert increase(before, after, lost) == events(sql, [EventType.JOB_WORKER_LOST])
    # These are not the reaper's.
    assert increase(before, after, "reaper_requeues_total") == {} == events(sql, REQUEUED)
    assert increase(before, after, "reaper_failures_total") == {} == events(sql, FAILED)


def lose_lease(jobs: Rows) -> Any:
    lease = claim(Job, jobs.plant(stage="clip"))
    assert lease is not None
    jobs.set(lease.pk, lease_expires_at=ago(1))
    assert reap([Job]).requeued == 1
    return lease


def test_a_stale_write_is_counted_with_its_event(jobs: Rows, sql: Sql) -> None:
    lease = lose_lease(jobs)
    with pytest.raises(LeaseLost):
        lease.finish()
    assert scrape().by("table", of="jobreaper_stale_writes_total") == {"jobs": 1}
    assert sum(events(sql, [EventType.JOB_STALE_WRITE_REJECTED]).values()) == 1


def test_a_stale_write_whose_record_is_rolled_back_is_not_counted(jobs: Rows, sql: Sql) -> None:
    lease = lose_lease(jobs)
    with pytest.raises(LeaseLost), transaction.atomic():
        lease.finish()
    assert events(sql, [EventType.JOB_STALE_WRITE_REJECTED]) == {}
    assert scrape().by("table", of="jobreaper_stale_writes_total") == {}


def test_a_write_that_was_committed_after_all_is_no_stale_write(jobs: Rows, sql: Sql) -> None:
    lease = claim(Job, jobs.plant())
    assert lease is not None
    lease.finish()
    table = table_of(Job)
    params = {
        "id": holding_of(lease).key,
        "epoch": lease.epoch,
        "verb": "finish",
        "worker": lease.worker,
        "stage": None,
        "attempt": 1,
        "tried_before": True,
        "ended_by": [EventType.JOB_FINISHED],
        "session": holding_of(lease).session,
    }
    with connection.cursor() as cursor:
        cursor.execute(table.statement("reject"), params)
    assert scrape().by("table", of="jobreaper_stale_writes_total") == {}


def install() -> None:
    for model in (Job, ExecutorJob):
        for made in functions.of_table(table_of(model), connection):
            made.create(connection)


@pytest.fixture
def installed() -> Iterator[None]:
    """The SQL functions of `jobs` and `executor_jobs`, as their migrations install them."""
    install()
    yield
    install()


def test_a_pass_of_the_sql_function_is_counted_like_any_other(
    installed: None, jobs: Rows, sql: Sql
) -> None:
    jobs.plant_expired(stage="clip")
    jobs.plant_expired(max_attempts=1)
    for _ in range(3):
        jobs.plant_expired(stage="clip")
        sql("SELECT * FROM jobs_reap()")
    page = scrape()
    assert page.by("table", "stage", of="reaper_requeues_total") == events(sql, REQUEUED)
    assert page.by("table", "stage", of="reaper_failures_total") == events(sql, FAILED)
    assert page.value("reaper_requeues_total", table="jobs", stage="clip") == 4
    assert page.value("reaper_scan_duration_seconds_count", table="jobs") == 3
    assert page.value("reaper_scan_duration_seconds_sum", table="jobs") > 0
    assert page.value("reaper_last_success_timestamp_seconds") > 0
    assert len(sql("SELECT id FROM jobreaper_totals WHERE name = 'requeues'")) == 1


def test_a_held_pass_of_the_sql_function_is_counted(installed: None, jobs: Rows, sql: Sql) -> None:
    sql("SELECT * FROM jobs_reap()")
    sql("UPDATE jobreaper_passes SET started_at = pg_postmaster_start_time() - interval '1 s'")
    with override_settings(JOBREAPER={"RECOVERY_GRACE_SEC": "300d"}):
        for made in functions.of_table(table_of(Job), connection):
            made.create(connection)
    sql("SELECT * FROM jobs_reap()")
    assert scrape().value("reaper_held_total") == 1
    assert scrape().value("reaper_scan_duration_seconds_count", table="jobs") == 1


def test_a_pass_counts_once_for_each_table_it_read(jobs: Rows) -> None:
    before = scrape()
    reap([Job])
    after = scrape()
    count = "reaper_scan_duration_seconds_count"
    assert after.value(count, table="jobs") - before.value(count, table="jobs") == 1
    assert after.value(count, table="asr_jobs") == before.value(count, table="asr_jobs")
    assert after.value("reaper_scan_duration_seconds_sum", table="jobs") > 0


def test_the_last_success_is_that_of_the_table_that_waits_longest(jobs: Rows, sql: Sql) -> None:
    name = "reaper_last_success_timestamp_seconds"
    assert scrape().value(name) == 0
    reap()
    first = scrape().value(name)
    now = float(sql("SELECT extract(epoch FROM now())::float8 AS now")[0]["now"])
    assert now - 60 < first <= now
    reap([Job])
    assert scrape().value(name) == first
    reap()
    assert scrape().value(name) > first


def test_a_pass_with_an_error_is_no_success(
    jobs: Rows, second_connection: psycopg.Connection[Any]
) -> None:
    reap()
    before = scrape()
    second_connection.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobreaper.reaper.sending.LOCK_TIMEOUT_SEC", 0.05)
        patch.setattr("jobreaper.db.retry.RETRIES", 0)
        # Every table: the last success is that of the one that waits longest.
        assert reap().all_errors
    second_connection.rollback()
    after = scrape()
    name = "reaper_last_success_timestamp_seconds"
    assert after.value(name) == before.value(name)
    count = "reaper_scan_duration_seconds_count"
    assert after.value(count, table="jobs") - before.value(count, table="jobs") == 1


def test_a_held_pass_is_counted_and_reads_nothing(jobs: Rows, sql: Sql) -> None:
    jobs.plant_expired()
    reap()
    before = scrape()
    sql("UPDATE jobreaper_passes SET started_at = pg_postmaster_start_time() - interval '1 s'")
    with override_settings(JOBREAPER={"RECOVERY_GRACE_SEC": "300d"}):
        assert reap().held
    after = scrape()
    assert after.value("reaper_held_total") - before.value("reaper_held_total") == 1
    for name in ("reaper_scan_duration_seconds_count", "reaper_last_success_timestamp_seconds"):
        assert after.samples[name] == before.samples[name]


def test_the_counters_of_a_table_that_is_no_job_table_any_more_are_left_out(sql: Sql) -> None:
    sql("""INSERT INTO jobreaper_totals (name, "table", stage) VALUES ('requeues', 'gone', 'x')""")
    assert "gone" not in {dict(key)["table"] for key in scrape().samples["reaper_requeues_total"]}


@pytest.mark.parametrize("passes", [1, 30])
def test_each_total_is_one_row_after_a_pass(passes: int, jobs: Rows, sql: Sql) -> None:
    for _ in range(passes):
        jobs.plant_expired(stage="clip")
        assert reap().requeued == 1
    rows = sql('SELECT name, "table", stage FROM jobreaper_totals')
    assert len(rows) == len({tuple(row.values()) for row in rows})
    assert scrape().by("stage", of="reaper_requeues_total") == {"clip": passes}
    assert totals.read(connection)
