"""A claim that the database has forgotten, and the same worker's next one under the same epoch."""

from collections.abc import Callable

import pytest
from django.db import connection, transaction

from jobreaper import Lease, LeaseLost, claim, claim_next, signals
from jobreaper.protocol.batch import Run, fail_group, finish_group, release_group
from jobreaper.protocol.heartbeat import beat
from jobreaper.protocol.holding import holding_of
from jobreaper.protocol.phases import Phase
from jobreaper.tables import table_of
from project.media.models import Job
from tests.rows import Rows, Sql

VERBS: dict[str, Callable[[Lease], object]] = {
    "finish": lambda lease: lease.finish(),
    "fail": lambda lease: lease.fail("E1"),
    "release": lambda lease: lease.release(),
    "heartbeat": lambda lease: lease.heartbeat(),
    "save": lambda lease: lease.job.save(),
    "check": lambda lease: lease.check(),
}


def fail_over(jobs: Rows, key: int) -> None:
    """Come up on a standby that had not heard of the last claim."""
    jobs.sql(
        "UPDATE jobs SET status = 'queued', lease_epoch = lease_epoch - 1, locked_by = NULL,"
        " claimed_at = NULL, lease_expires_at = NULL, attempt_count = attempt_count - 1"
        " WHERE id = %s",
        key,
    )


@pytest.fixture
def two(jobs: Rows) -> tuple[Lease, Lease]:
    """Two leases of one job that the database cannot tell apart."""
    key = jobs.plant()
    older = claim(Job, key)
    fail_over(jobs, key)
    [later] = claim_next(Job)
    assert older is not None
    assert (older.epoch, older.worker) == (later.epoch, later.worker)
    return older, later


@pytest.mark.parametrize("verb", VERBS)
def test_the_older_lease_is_refused_whatever_it_does(
    verb: str, two: tuple[Lease, Lease], jobs: Rows
) -> None:
    older, later = two
    assert older.lost
    before = jobs.row(older.pk)
    with pytest.raises(LeaseLost):
        VERBS[verb](older)
    assert jobs.row(older.pk) == before
    later.job.save()
    later.finish()
    assert jobs.row(older.pk)["status"] == "success"


@pytest.mark.parametrize("end", [finish_group, fail_group, release_group])
def test_of_a_group_only_the_later_lease_is_ended(
    end: Callable[..., object], two: tuple[Lease, Lease]
) -> None:
    runs = [Run(lease, 0.0, error=ZeroDivisionError()) for lease in two]
    ending = end(runs)
    assert (ending.lost, ending.ended) == (runs[:1], runs[1:])  # type: ignore[attr-defined]
    assert [run.holding.phase for run in runs] == [Phase.LOST, Phase.ENDED]


def test_whoever_runs_under_the_older_lease_is_told_at_once(jobs: Rows) -> None:
    told = []

    def note(lease: Lease, **_: object) -> None:
        told.append(lease)

    key = jobs.plant()
    older = claim(Job, key)
    signals.lease_lost.connect(note)
    try:
        fail_over(jobs, key)
        claim(Job, key)
    finally:
        signals.lease_lost.disconnect(note)
    assert told == [older]


def test_a_beat_of_the_older_lease_does_not_revive_it(two: tuple[Lease, Lease]) -> None:
    beat(connection, table_of(Job), [holding_of(lease) for lease in two])
    assert [lease.lost for lease in two] == [True, False]


def test_a_claim_that_was_rolled_back_has_no_part_in_the_next_one(jobs: Rows) -> None:
    key = jobs.plant()
    with transaction.atomic():
        older = claim(Job, key)
        transaction.set_rollback(True)
    later = claim(Job, key)
    assert older is not None
    assert later is not None
    with pytest.raises(LeaseLost):
        older.finish()
    later.finish()


def test_the_next_attempt_of_a_job_in_the_same_process_takes_nothing_from_the_last(
    jobs: Rows, sql: Sql
) -> None:
    key = jobs.plant()
    first = claim(Job, key)
    assert first is not None
    first.release()
    second = claim(Job, key)
    assert second is not None
    assert holding_of(first).phase is Phase.ENDED
    assert not first.lost
    second.finish()
