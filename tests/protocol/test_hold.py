"""`with hold(...)`: claim, beat, finish, and what an exception does."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction
from pytest_django import Settings

from jobreaper import Lease, LeaseLost, NotClaimed, cancel, claim, hold
from project.media.models import Job
from tests.rows import Rows, ahead
from tests.waiting import until


def test_the_job_is_running_in_the_block_and_done_after_it(jobs: Rows) -> None:
    key = jobs.plant()
    with hold(Job, key, worker="w1") as lease:
        assert jobs.row(key)["locked_by"] == "w1"
        assert lease.job.pk == key
    assert jobs.row(key)["status"] == "success"
    assert jobs.event_types(key) == ["job:finished"]


def test_beats_go_on_while_the_block_runs_and_end_with_it(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"HEARTBEAT_SEC": 0.05}
    key = jobs.plant()

    def beaten_since(then: object) -> Callable[[], bool]:
        return lambda: jobs.row(key)["last_heartbeat_at"] > then

    with hold(Job, key):
        for _ in range(3):
            until(beaten_since(jobs.row(key)["last_heartbeat_at"]))
    last = jobs.row(key)["last_heartbeat_at"]
    other = jobs.plant()
    with hold(Job, other) as lease:
        first = lease.job.last_heartbeat_at
        until(lambda: jobs.row(other)["last_heartbeat_at"] > first)
    assert jobs.row(key)["last_heartbeat_at"] == last


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "processing"},
        {"status": "success"},
        {"status": "failed"},
        {"status": "cancelled"},
        {"next_earliest_run_at": ahead(60)},
    ],
)
def test_a_job_that_cannot_be_claimed_is_not_run(jobs: Rows, columns: dict[str, Any]) -> None:
    key = jobs.plant(**columns)
    before = jobs.row(key)
    with pytest.raises(NotClaimed, match=f"cannot claim jobs {key}: "), hold(Job, key):
        pytest.fail("the block ran")
    assert jobs.row(key) == before


def test_a_job_that_does_not_exist_is_not_run(transactional_db: None) -> None:
    with pytest.raises(NotClaimed), hold(Job, 987_654_321):
        pytest.fail("the block ran")


class OwnTrouble(Exception):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_fails_the_attempt_with_its_class_and_message_and_goes_on(
    jobs: Rows,
) -> None:
    key = jobs.plant()
    with pytest.raises(OwnTrouble, match="went wrong"), hold(Job, key):
        raise OwnTrouble("went wrong")
    row = jobs.row(key)
    assert (row["status"], row["fail_code"], row["fail_reason"]) == (
        "queued",
        "OwnTrouble",
        "went wrong",
    )
    assert jobs.event_types(key) == ["job:retried"]


def test_the_last_attempts_exception_fails_the_job(jobs: Rows) -> None:
    key = jobs.plant(max_attempts=1)
    with pytest.raises(OwnTrouble), hold(Job, key):
        raise OwnTrouble
    assert jobs.row(key)["status"] == "failed"


@pytest.mark.parametrize("interruption", [SystemExit, KeyboardInterrupt])
def test_an_interruption_releases_the_job_and_goes_on(
    jobs: Rows, interruption: type[BaseException]
) -> None:
    key = jobs.plant()
    with pytest.raises(interruption), hold(Job, key):
        raise interruption
    row = jobs.row(key)
    assert (row["status"], row["attempt_count"]) == ("queued", 0)
    assert jobs.event_types(key) == ["job:released"]


@pytest.mark.parametrize(
    ("end", "events"),
    [
        (lambda lease: lease.finish(), ["job:finished"]),
        (lambda lease: lease.fail("E1"), ["job:retried"]),
        (lambda lease: lease.fail("E1", retry=False), ["job:failed"]),
        (lambda lease: lease.release(), ["job:released"]),
    ],
)
def test_a_block_that_ended_the_lease_itself_is_left_as_it_is(
    jobs: Rows, end: Callable[[Lease], object], events: list[str]
) -> None:
    key = jobs.plant()
    with hold(Job, key) as lease:
        end(lease)
        ended = jobs.row(key)
    assert jobs.row(key) == ended
    assert jobs.event_types(key) == events


def test_an_exception_after_the_end_is_the_callers_own(jobs: Rows) -> None:
    key = jobs.plant()

    def work() -> None:
        with hold(Job, key) as lease:
            lease.finish()
            raise OwnTrouble

    with pytest.raises(OwnTrouble):
        work()
    assert jobs.row(key)["status"] == "success"
    assert jobs.event_types(key) == ["job:finished"]


def test_a_block_that_lost_its_lease_is_told_at_its_end(jobs: Rows) -> None:
    key = jobs.plant()
    with pytest.raises(LeaseLost), hold(Job, key):
        cancel(Job, [key], by="ann")
    assert jobs.row(key)["status"] == "cancelled"
    assert jobs.event_types(key) == ["admin:cancelled", "job:stale_write_rejected"]


def test_the_blocks_own_exception_is_the_one_to_be_seen_though_the_lease_is_lost(
    jobs: Rows,
) -> None:
    key = jobs.plant()

    def work() -> None:
        with hold(Job, key):
            cancel(Job, [key], by="ann")
            raise OwnTrouble

    with pytest.raises(OwnTrouble):
        work()
    assert jobs.row(key)["status"] == "cancelled"


def test_a_block_that_asks_is_told_in_the_middle(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"HEARTBEAT_SEC": 0.05}
    key = jobs.plant()

    def work() -> None:
        with hold(Job, key) as lease:
            lease.check()
            cancel(Job, [key], by="ann")
            until(lambda: lease.lost)
            lease.check()
            pytest.fail("the work went on")

    with pytest.raises(LeaseLost, match="taken away"):
        work()
    assert jobs.event_types(key) == ["admin:cancelled"]


def test_a_broken_transaction_of_the_blocks_own_still_fails_the_attempt(jobs: Rows) -> None:
    key = jobs.plant()
    with pytest.raises(IntegrityError), hold(Job, key), transaction.atomic():
        Job.objects.create(payload=None)
    assert jobs.row(key)["fail_code"] == "IntegrityError"


def test_a_broken_transaction_around_the_block_hides_nothing(jobs: Rows) -> None:
    key = jobs.plant()
    with pytest.raises(IntegrityError), transaction.atomic(), hold(Job, key):
        Job.objects.create(payload=None)
    # The claim was part of the transaction, so the job is where it was.
    assert jobs.row(key)["status"] == "queued"


def test_an_exception_without_a_printable_message_still_fails_the_attempt(jobs: Rows) -> None:
    key = jobs.plant()
    with pytest.raises(Unprintable), hold(Job, key):
        raise Unprintable
    row = jobs.row(key)
    assert (row["fail_code"], row["fail_reason"]) == ("Unprintable", "<unprintable Unprintable>")


def test_a_job_may_be_held_again_after_it_was_given_back(jobs: Rows) -> None:
    key = jobs.plant()
    with hold(Job, key) as first:
        first.release()
    with hold(Job, key) as second:
        assert second.epoch == first.epoch + 1
    assert jobs.row(key)["status"] == "success"


def test_a_lease_can_be_beaten_without_hold(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"HEARTBEAT_SEC": 0.05}
    lease = claim(Job, jobs.plant())
    assert lease is not None
    first = jobs.row(lease.pk)["last_heartbeat_at"]
    with lease:
        until(lambda: jobs.row(lease.pk)["last_heartbeat_at"] > first)
    # Leaving the block of a lease ends the beats and nothing else.
    assert jobs.row(lease.pk)["status"] == "processing"


def by_django(dsn: str, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def by_a_connection_of_its_own(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn) as own:
        own.execute(statement.encode())


@pytest.mark.parametrize("write", [by_django, by_a_connection_of_its_own])
def test_the_reason_of_a_refused_write_does_not_quote_the_row(
    jobs: Rows, dsn: str, write: Callable[[str, str], None]
) -> None:
    key = jobs.plant()
    with pytest.raises((IntegrityError, psycopg.IntegrityError)) as caught, hold(Job, key):
        write(dsn, "INSERT INTO jobs (stage, max_attempts) VALUES ('s3cret', NULL)")
    error: Any = caught.value if write is by_a_connection_of_its_own else caught.value.__cause__
    assert "s3cret" in error.diag.message_detail
    row, [event] = jobs.row(key), jobs.events(key)
    assert row["fail_reason"] == event["details"]["fail_reason"]
    assert row["fail_reason"].startswith('null value in column "max_attempts"')
    assert "s3cret" not in row["fail_reason"]
