"""Endings in a transaction of the caller's, and over a connection that is lost."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection, transaction
from django.dispatch import Signal

from jobreaper import Lease, LeaseLost, claim, signals
from jobreaper.protocol import ending
from project.media.models import AsrJob, Job
from tests.rows import Rows, Sql

ENDINGS: dict[str, Callable[[Lease], object]] = {
    "finish": lambda lease: lease.finish(),
    "fail": lambda lease: lease.fail("E1"),
    "release": lambda lease: lease.release(),
}


def claimed(jobs: Rows, worker: str = "w1", **columns: Any) -> Lease:
    lease = claim(Job, jobs.plant(**columns), worker=worker)
    assert lease is not None
    return lease


def take_away(jobs: Rows, lease: Lease) -> None:
    """Let another worker have the job, as after a reap."""
    jobs.set(lease.pk, lease_epoch=lease.epoch + 2, locked_by="w2")


# In the caller's transaction.


def test_a_finish_is_committed_with_the_works_own_writes(jobs: Rows, asr_jobs: Rows) -> None:
    lease = claimed(jobs)
    effect = asr_jobs.plant()
    with transaction.atomic():
        AsrJob.objects.filter(pk=effect).update(stage="done")
        lease.finish()
        assert lease.closed
        assert jobs.row(lease.pk)["status"] == "processing"
        assert asr_jobs.row(effect)["stage"] is None
    assert jobs.row(lease.pk)["status"] == "success"
    assert asr_jobs.row(effect)["stage"] == "done"
    assert jobs.event_types(lease.pk) == ["job:finished"]


@pytest.mark.parametrize("verb", ENDINGS)
def test_an_ending_that_is_rolled_back_never_was(jobs: Rows, verb: str) -> None:
    lease = claimed(jobs)
    before = jobs.row(lease.pk)
    with transaction.atomic():
        ENDINGS[verb](lease)
        transaction.set_rollback(True)
    assert jobs.row(lease.pk) == before
    assert jobs.events(lease.pk) == []
    assert not lease.closed
    lease.heartbeat()
    lease.finish()
    assert jobs.row(lease.pk)["status"] == "success"


def test_an_ending_rolled_back_with_its_savepoint_never_was(jobs: Rows) -> None:
    lease = claimed(jobs)
    with transaction.atomic():
        with transaction.atomic():
            lease.fail("E1")
            transaction.set_rollback(True)
        assert not lease.closed
        lease.finish()
    assert jobs.row(lease.pk)["status"] == "success"
    assert jobs.event_types(lease.pk) == ["job:finished"]


def test_a_rejected_finish_takes_the_works_writes_back(jobs: Rows, asr_jobs: Rows) -> None:
    lease = claimed(jobs)
    take_away(jobs, lease)
    effect = asr_jobs.plant()

    @transaction.atomic
    def work() -> None:
        AsrJob.objects.filter(pk=effect).update(stage="done")
        lease.finish()

    with pytest.raises(LeaseLost):
        work()
    assert asr_jobs.row(effect)["stage"] is None
    # The event of a rejected write lives in the caller's transaction.
    assert jobs.events(lease.pk) == []


def test_a_finish_in_manual_transaction_management_is_the_callers_to_commit(jobs: Rows) -> None:
    lease = claimed(jobs)
    connection.set_autocommit(False)
    try:
        lease.finish()
        assert jobs.row(lease.pk)["status"] == "processing"
        connection.commit()
        assert jobs.row(lease.pk)["status"] == "success"
    finally:
        connection.rollback()
        connection.set_autocommit(True)


# A connection that is lost.


@pytest.mark.parametrize("verb", ENDINGS)
def test_an_ending_survives_a_session_that_was_ended(jobs: Rows, sql: Sql, verb: str) -> None:
    lease = claimed(jobs)
    sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
    ENDINGS[verb](lease)
    assert jobs.row(lease.pk)["status"] != "processing"
    assert len(jobs.events(lease.pk)) == 1


@pytest.mark.parametrize("verb", ENDINGS)
def test_an_ending_survives_a_statement_that_an_exception_broke_off(jobs: Rows, verb: str) -> None:
    """celery#9824: a soft time limit in the middle of a query leaves its connection unusable."""
    lease = claimed(jobs)
    # What psycopg leaves behind: a statement that was sent and whose answer nobody waits for.
    connection.connection.pgconn.send_query(b"SELECT 1")
    ENDINGS[verb](lease)
    assert jobs.row(lease.pk)["status"] != "processing"
    assert len(jobs.events(lease.pk)) == 1


@pytest.mark.parametrize("verb", ENDINGS)
def test_an_ending_whose_answer_was_lost_is_no_stale_write(
    jobs: Rows, sql: Sql, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = claimed(jobs)
    lose_the_answer(lease, sql, monkeypatch)
    ENDINGS[verb](lease)
    assert lease.closed
    assert not lease.lost
    assert len(jobs.events(lease.pk)) == 1


@pytest.mark.parametrize("verb", ENDINGS)
def test_an_ending_whose_answer_was_lost_is_no_stale_write_though_another_has_the_job_by_now(
    jobs: Rows, sql: Sql, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = claimed(jobs)
    lose_the_answer(lease, sql, monkeypatch, then=lambda: take_away(jobs, lease))
    ENDINGS[verb](lease)
    assert not lease.lost
    assert len(jobs.events(lease.pk)) == 1


@pytest.mark.parametrize("attempts_before", [0, 2])
def test_a_failure_whose_answer_was_lost_says_whether_the_job_went_back(
    jobs: Rows, sql: Sql, attempts_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = claimed(jobs, attempt_count=attempts_before)
    lose_the_answer(lease, sql, monkeypatch)
    went_back = lease.fail("E1")
    assert went_back == (attempts_before == 0)
    assert jobs.row(lease.pk)["status"] == ("queued" if went_back else "failed")


@pytest.mark.parametrize(
    ("verb", "signal"),
    [
        ("finish", signals.job_finished),
        ("fail", signals.job_retried),
        ("release", signals.job_released),
    ],
)
def test_an_ending_whose_answer_was_lost_is_announced(
    jobs: Rows, sql: Sql, verb: str, signal: Signal, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def listen(lease: Lease, details: dict[str, Any], **_: Any) -> None:
        told.append((lease, details))

    lease = claimed(jobs)
    lose_the_answer(lease, sql, monkeypatch)
    signal.connect(listen)
    ENDINGS[verb](lease)
    [event] = jobs.events(lease.pk)
    assert told == [(lease, event["details"])]


def test_after_a_lost_answer_a_job_of_somebody_else_is_still_a_stale_write(
    jobs: Rows, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = claimed(jobs)
    take_away(jobs, lease)
    lose_the_answer(lease, sql, monkeypatch)
    with pytest.raises(LeaseLost):
        lease.finish()


def lose_the_answer(
    lease: Lease,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
    then: Callable[[], object] = lambda: None,
) -> None:
    """Let the next verb's first statement be committed, and its session end before the answer."""
    send = ending.send
    tries = []

    def send_and_lose(*args: Any) -> dict[str, Any]:
        tries.append(args)
        if len(tries) > 1:
            return send(*args)
        pid = connection.connection.info.backend_pid
        with suppress(LeaseLost):
            send(*args)
        sql("SELECT pg_terminate_backend(%s, 5000)", pid)
        then()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        raise AssertionError("the session goes on")

    monkeypatch.setattr(ending, "send", send_and_lose)
