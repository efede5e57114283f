"""The three promises, kept by every way in: no job is lost or stuck, no healthy job is reaped, no
stale worker writes.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.protocol.redis_way import REDIS_WAYS
from tests.protocol.ways import WAYS, JobState, Way
from tests.rows import Sql

ALL_WAYS = WAYS | REDIS_WAYS


@pytest.fixture(params=ALL_WAYS)
def way(request: pytest.FixtureRequest, sql: Sql) -> Iterator[Way]:
    way = ALL_WAYS[request.param](sql)
    yield way
    way.close()


def is_a_success(way: Way, job: object, *, epoch: int, attempts: int) -> bool:
    """Whether the job is one, after so many claims and reaps."""
    return way.state(job) == JobState("success", None, epoch if way.has_epochs else 0, attempts)


# No job is lost or stuck.


def test_a_finished_job_is_a_success_for_good(way: Way) -> None:
    job = way.add()
    held = way.claim(job, "w1")
    assert way.state(job).status == "processing"
    assert way.finish(held)
    assert is_a_success(way, job, epoch=1, attempts=1)
    assert way.reap() == {}
    assert way.claim(job, "w2") is None
    assert way.endings(job) == 1


def test_a_job_whose_worker_was_lost_is_finished_by_another(way: Way) -> None:
    job = way.add()
    way.claim(job, "w1")
    way.lapse(job)
    assert way.reap() == {job: "requeued"}
    way.make_due(job)
    assert way.finish(way.claim(job, "w2"))
    assert is_a_success(way, job, epoch=3, attempts=2)
    assert way.endings(job) == 1


def test_a_lost_job_waits_for_its_backoff(way: Way) -> None:
    job = way.add()
    way.claim(job, "w1")
    way.lapse(job)
    way.reap()
    assert (way.claim(job, "w2") is None) == way.lost_jobs_wait


@pytest.mark.parametrize("max_attempts", [1, 2, 4])
def test_a_job_that_kills_every_worker_ends_failed_when_its_attempts_are_used_up(
    way: Way, max_attempts: int
) -> None:
    job = way.add(max_attempts=max_attempts)
    for attempt in range(1, max_attempts + 1):
        assert way.claim(job, f"w{attempt}")
        way.lapse(job)
        assert way.reap() == {job: "requeued" if attempt < max_attempts else "failed"}
        way.make_due(job)
    assert way.state(job).status == "failed"
    assert way.claim(job, "one more") is None
    assert way.endings(job) == 1


def test_a_job_that_always_fails_ends_failed_when_its_attempts_are_used_up(way: Way) -> None:
    job = way.add(max_attempts=2)
    assert way.fail(way.claim(job, "w1"))
    assert way.state(job).status == "queued"
    assert way.claim(job, "too soon") is None
    way.make_due(job)
    assert way.fail(way.claim(job, "w2"))
    assert way.state(job).status == "failed"
    assert way.claim(job, "one more") is None
    assert way.endings(job) == 1


def test_a_released_job_is_due_at_once_and_no_attempt_is_counted(way: Way) -> None:
    job = way.add(max_attempts=1)
    for deploy in range(3):
        assert way.release(way.claim(job, f"w{deploy}"))
        assert way.state(job).attempt_count == 0
    assert way.finish(way.claim(job, "last"))


def test_a_dead_reaper_is_no_harm_to_the_next_pass(way: Way) -> None:
    job = way.add()
    way.claim(job, "w1")
    way.lapse(job)
    assert way.reap() == {job: "requeued"}
    assert way.reap() == {}
    assert way.endings(job) == 0


# No healthy job is reaped.


def test_a_fresh_claim_is_not_reaped(way: Way) -> None:
    way.claim(way.add(), "w1")
    assert way.reap() == {}


def test_a_job_ten_leases_long_that_beats_is_never_reaped(way: Way) -> None:
    job = way.add()
    held = way.claim(job, "w1")
    for _ in range(20):
        way.let_time_pass(job, 150)
        assert way.reap() == {}
        assert way.beat(held)
    assert way.finish(held)
    assert is_a_success(way, job, epoch=1, attempts=1)


def test_a_beat_in_the_last_moment_saves_the_lease(way: Way) -> None:
    job = way.add()
    held = way.claim(job, "w1")
    way.lapse(job)
    assert way.beat(held)
    assert way.reap() == {}
    assert way.finish(held)


def test_a_late_finish_that_comes_before_the_reaper_counts(way: Way) -> None:
    job = way.add()
    held = way.claim(job, "w1")
    way.lapse(job)
    assert way.finish(held)
    assert way.reap() == {}
    assert way.endings(job) == 1


def test_only_the_job_whose_lease_ran_out_is_reaped(way: Way) -> None:
    lost = way.add()
    way.claim(lost, "w1")
    healthy = way.add()
    held = way.claim(healthy, "w1")
    way.lapse(lost)
    assert way.reap() == {lost: "requeued"}
    assert way.finish(held)


# No stale worker writes.


def reaped(way: Way, job: object) -> None:
    way.lapse(job)
    way.reap()
    way.make_due(job)


def reaped_and_claimed(way: Way, job: object) -> None:
    reaped(way, job)
    assert way.claim(job, "w2")


def reaped_and_claimed_by_a_worker_of_the_same_name(way: Way, job: object) -> None:
    reaped(way, job)
    assert way.claim(job, "w1")


def reaped_and_finished(way: Way, job: object) -> None:
    reaped(way, job)
    assert way.finish(way.claim(job, "w2"))


def reaped_and_released(way: Way, job: object) -> None:
    reaped(way, job)
    assert way.release(way.claim(job, "w2"))


def cancelled(way: Way, job: object) -> None:
    way.cancel(job)


def requeued_by_hand(way: Way, job: object) -> None:
    way.requeue(job)


def claimed_again_under_the_same_epoch(way: Way, job: object) -> None:
    way.give_to(job, "w2")


LOSSES = [
    reaped,
    reaped_and_claimed,
    reaped_and_claimed_by_a_worker_of_the_same_name,
    reaped_and_finished,
    reaped_and_released,
    cancelled,
    requeued_by_hand,
    claimed_again_under_the_same_epoch,
]


@pytest.mark.parametrize("verb", ["beat", "finish", "fail", "release"])
@pytest.mark.parametrize("lose", LOSSES)
def test_a_worker_that_lost_its_lease_writes_nothing_and_is_told_so(
    way: Way, lose: Callable[[Way, object], None], verb: str
) -> None:
    job = way.add()
    held = way.claim(job, "w1")
    lose(way, job)
    before = way.state(job)
    assert getattr(way, verb)(held) is False
    assert way.state(job) == before
    assert way.rejections(job) == ([] if verb == "beat" else [verb])


def test_the_new_holder_is_not_disturbed_by_the_old_one(way: Way) -> None:
    job = way.add()
    stale = way.claim(job, "w1")
    reaped(way, job)
    held = way.claim(job, "w2")
    assert not way.finish(stale)
    assert way.beat(held)
    assert way.finish(held)
    assert way.endings(job) == 1


def test_a_job_has_one_holder(way: Way) -> None:
    job = way.add()
    assert way.claim(job, "w1")
    before = way.state(job)
    assert way.claim(job, "w2") is None
    assert way.state(job) == before


def test_the_epoch_goes_up_at_every_claim_reap_and_cancel_and_never_down(way: Way) -> None:
    if not way.has_epochs:
        pytest.skip("it has another fence")
    job = way.add()
    epochs = [way.state(job).epoch]

    def note() -> None:
        epochs.append(way.state(job).epoch)

    held = way.claim(job, "w1")
    note()
    way.lapse(job)
    way.reap()
    note()
    way.make_due(job)
    held = way.claim(job, "w2")
    note()
    way.release(held)
    held = way.claim(job, "w3")
    note()
    way.cancel(job)
    note()
    assert epochs == [0, 1, 2, 3, 4, 5]
