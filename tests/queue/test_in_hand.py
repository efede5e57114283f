"""What a worker has in hand: its leases, rows that are locked, outages, the end."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import Error, connection
from django.test import override_settings
from psycopg.sql import SQL, Identifier

from jobreaper import cancel, enqueue, enqueue_many, job_handler, reap
from jobreaper.models import Job
from jobreaper.protocol import heartbeat
from jobreaper.protocol.batch import claim_group
from jobreaper.queue.runs import Tally
from jobreaper.queue.worker import Worker
from jobreaper.tables import table_of
from tests.committed import FOREIGN_CLIENT
from tests.queue.working import Gate, once
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


def test_everything_in_hand_is_beaten_and_nothing_after_its_end(
    gate: Gate, working: Any, jobs: Rows
) -> None:
    """No healthy job is reaped: one that takes many leases runs to its end, once."""
    with override_settings(JOBREAPER={"DEFAULT_LEASE_SEC": 0.6, "HEARTBEAT_SEC": 0.1}):
        job = enqueue("gate")
        worker = working()
        until(lambda: gate.entered)
        first = jobs.row(job.pk)["lease_expires_at"]
        until(lambda: jobs.now() > first)
        assert reap([Job]).requeued == 0
        gate.open.set()
        until(lambda: worker.tally.succeeded == 1)
    until(lambda: not heartbeat.heart._leases)
    assert gate.entered == [job.pk]


def test_a_job_that_was_reaped_while_it_waited_for_its_turn_is_not_run(
    gate: Gate, working: Any, jobs: Rows
) -> None:
    [first] = enqueue_many([{}], type="gate").ids
    runs = claim_group(table_of(Job), 1, types=["gate"])
    assert [run.lease.pk for run in runs] == [first]
    cancel(Job, [first], by="ann")
    until(lambda: _lost_after_beat(runs[0].lease))
    worker = Worker()
    worker._lanes[0].hand.take(runs)
    worker._lanes[0].crew.start()
    worker._lanes[0].crew.dismiss()
    worker._lanes[0].end_done()
    assert gate.entered == []
    assert worker.tally == Tally(claimed=1, lost=1)


def _lost_after_beat(lease: Any) -> bool:
    try:
        lease.heartbeat()
    except Exception:
        return True
    return False


def test_a_failing_job_that_somebody_has_locked_keeps_no_other_waiting(
    gate: Gate, working: Any, jobs: Rows, second_connection: Any
) -> None:
    @job_handler("raises")
    def raises(job: Any, lease: Any) -> None:
        gate(job, lease)
        raise ValueError

    job = enqueue("raises", max_attempts=1)
    worker = working()
    until(lambda: gate.entered)
    second_connection.execute("SELECT 1 FROM jobreaper_jobs WHERE id = %s FOR UPDATE", [job.pk])
    gate.open.set()
    enqueue_many([{}] * 20, type="idle")
    until(lambda: worker.tally.succeeded == 20)
    assert worker.tally.failed == 0
    second_connection.rollback()
    until(lambda: worker.tally.failed == 1)
    assert jobs.row(job.pk)["fail_code"] == "ValueError"


def test_a_job_to_be_given_back_that_somebody_has_locked_is_kept_until_it_is_free(
    gate: Gate, working: Any, jobs: Rows, second_connection: Any
) -> None:
    """As our own heartbeat does, in the moment that the worker is told to stop."""
    enqueue_many([{}] * 400, type="idle")
    enqueue("gate")
    behind = enqueue_many([{}] * 5, type="idle").ids
    worker = working()
    until(lambda: worker.tally.succeeded == 400)
    until(lambda: {jobs.row(pk)["status"] for pk in behind} == {"processing"})
    second_connection.execute("SELECT 1 FROM jobreaper_jobs WHERE id = %s FOR UPDATE", behind[:1])
    worker.stop()
    until(lambda: worker.tally.released == 4)
    assert {lease.key for lease in heartbeat.heart._leases} == {behind[0], *gate.entered}
    second_connection.rollback()
    until(lambda: worker.tally.released == 5)
    assert jobs.row(behind[0])["attempt_count"] == 0
    assert worker.tally.lost == 0


def test_told_to_stop_a_worker_ends_what_runs_and_gives_the_rest_back(
    gate: Gate, working: Any, jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is not the waiting behind a slow job that gives them back.
    monkeypatch.setattr("jobreaper.queue.intake.LONGEST_WAIT_SEC", 600)
    enqueue_many([{}] * 30, type="idle")
    [running] = enqueue_many([{}], type="gate").ids
    waiting = enqueue_many([{}] * 5, type="idle").ids
    worker = working()
    until(lambda: gate.entered)
    until(lambda: worker.tally.succeeded == 30)
    worker.stop()
    until(lambda: worker.tally.released == 5)
    assert {jobs.row(pk)["status"] for pk in waiting} == {"queued"}
    assert {jobs.row(pk)["attempt_count"] for pk in waiting} == {0}
    assert jobs.row(running)["status"] == "processing"
    gate.open.set()
    until(lambda: worker.tally.succeeded == 31)


def test_what_was_done_while_the_database_was_away_is_finished_when_it_is_back(
    working: Any, jobs: Rows, sql: Sql, gate: Gate
) -> None:
    job = enqueue("gate")
    worker = working()
    until(lambda: gate.entered)
    sql("ALTER TABLE jobreaper_jobs RENAME COLUMN finished_at TO away")
    try:
        gate.open.set()
        until(lambda: worker._lanes[0].hand._done)
    finally:
        sql("ALTER TABLE jobreaper_jobs RENAME COLUMN away TO finished_at")
    until(lambda: worker.tally.succeeded == 1)
    assert jobs.row(job.pk)["status"] == "success"


@contextmanager
def database_away(sql: Sql, dsn: str) -> Iterator[None]:
    """Every session but those of foreign clients has ended, and none can begin."""
    [own] = sql("SELECT current_database() AS name")
    with psycopg.connect(dsn, dbname="postgres", autocommit=True) as elsewhere:
        allow = SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format
        name = Identifier(own["name"])
        elsewhere.execute(allow(name, SQL("false")))
        try:
            sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name <> %s",
                FOREIGN_CLIENT,
            )
            yield
        finally:
            elsewhere.execute(allow(name, SQL("true")))
            connection.close()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_of_jobs_that_wait_in_an_outage_none_is_started_in_vain(
    concurrency: int,
    gate: Gate,
    working: Any,
    jobs: Rows,
    sql: Sql,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobreaper.queue.intake.LONGEST_WAIT_SEC", 600)

    @job_handler("write")
    def write(job: Any, lease: Any) -> None:
        if job.payload.get("first"):
            gate(job, lease)
        try:
            Job.objects.filter(pk=job.pk).update(org_id="written")
        except Error as error:
            raise ValueError("not written") from error

    enqueue_many([{}] * 400, type="idle")
    enqueue_many([{"payload": {"first": True}}] * concurrency, type="write", max_attempts=1)
    behind = enqueue_many([{}] * 50, type="write", max_attempts=1).ids
    worker = working(concurrency=concurrency)
    until(lambda: len(gate.entered) == concurrency)
    until(lambda: {jobs.row(pk)["status"] for pk in behind} == {"processing"})
    with database_away(sql, dsn):
        gate.open.set()
        until(
            lambda: (
                sum(run.error is not None for run in list(worker._lanes[0].hand._done))
                == concurrency
            )
        )
        assert worker._lanes[0].hand.waiting == len(behind)
    until(lambda: worker.tally.succeeded == 450)
    assert worker.tally.failed == concurrency
    assert {jobs.row(pk)["org_id"] for pk in behind} == {"written"}


@pytest.mark.slow
def test_told_to_stop_in_an_outage_a_worker_leaves_what_it_holds_to_the_leases(
    gate: Gate, working: Any, jobs: Rows, sql: Sql, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.queue.worker.LAST_TRIES_SEC", 0.3)
    enqueue_many([{}] * 400, type="idle")
    [running] = enqueue_many([{}], type="gate").ids
    behind = enqueue_many([{}] * 5, type="idle").ids
    worker = working()
    until(lambda: worker.tally.succeeded == 400)
    until(lambda: {jobs.row(pk)["status"] for pk in behind} == {"processing"})
    with database_away(sql, dsn):
        worker.stop()
        # What runs comes to its end all the same.
        until(lambda: worker._lanes[0].hand._unwanted or not worker._reach.is_there)
        assert not worker._gave_up
        gate.open.set()
        until(lambda: worker.left_behind == 6)
    assert not heartbeat.heart._leases
    assert {jobs.row(pk)["status"] for pk in (running, *behind)} == {"processing"}


def test_after_an_error_a_worker_that_runs_once_starts_no_job_that_it_could_not_end(
    jobs: Rows, sql: Sql
) -> None:
    started: list[Any] = []
    moment = threading.Event()

    @job_handler("breaks")
    def break_table(job: Any, lease: Any) -> None:
        sql("ALTER TABLE jobreaper_jobs RENAME COLUMN finished_at TO away")

    @job_handler("slow")
    def note(job: Any, lease: Any) -> None:
        started.append(job.pk)
        moment.wait(0.1)

    enqueue_many([{}] * 400, type="idle")
    enqueue("breaks")
    behind = enqueue_many([{}] * 50, type="slow").ids
    try:
        with pytest.raises(Error):
            once()
    finally:
        sql("ALTER TABLE jobreaper_jobs RENAME COLUMN away TO finished_at")
    not_started = set(behind) - set(started)
    assert not_started
    assert {jobs.row(pk)["status"] for pk in not_started} == {"queued"}
