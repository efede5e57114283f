"""An operator and a worker, or a reaper, want the same job."""

from typing import Any

import pytest
from django.db import transaction

from jobreaper import Lease, LeaseLost, cancel, claim, fail, reap, requeue
from project.media.models import Job
from tests.races.rivals import Rivals
from tests.rows import Rows, ago


def claimed(jobs: Rows, **columns: Any) -> Lease:
    lease = claim(Job, jobs.plant(**columns))
    assert lease is not None
    return lease


# Cancel and claim.


def test_a_job_cancelled_while_a_worker_claims_it_is_taken_from_the_worker(
    jobs: Rows, rivals: Rivals
) -> None:
    key = jobs.plant()
    with transaction.atomic():
        lease = claim(Job, key)
        cancelling = rivals.start_and_see_it_wait(lambda: cancel(Job, [key], by="ann"))
    assert lease is not None
    assert cancelling.result() == [key]
    with pytest.raises(LeaseLost):
        lease.finish()
    assert jobs.row(key)["status"] == "cancelled"


def test_a_claim_that_comes_while_the_job_is_cancelled_gets_nothing(
    jobs: Rows, rivals: Rivals
) -> None:
    key = jobs.plant()
    with transaction.atomic():
        assert cancel(Job, [key], by="ann") == [key]
        assert rivals.start(lambda: claim(Job, key)).result() is None
    assert jobs.row(key)["status"] == "cancelled"


# Cancel and finish.


def test_a_job_cancelled_before_it_was_finished_stays_cancelled(jobs: Rows, rivals: Rivals) -> None:
    lease = claimed(jobs)
    with transaction.atomic():
        cancel(Job, [lease.pk], by="ann")
        finish = rivals.start_and_see_it_wait(lease.finish)
    with pytest.raises(LeaseLost):
        finish.result()
    assert jobs.row(lease.pk)["status"] == "cancelled"
    assert jobs.event_types(lease.pk) == ["admin:cancelled", "job:stale_write_rejected"]


def test_a_job_finished_before_it_was_cancelled_stays_a_success(jobs: Rows, rivals: Rivals) -> None:
    lease = claimed(jobs)
    with transaction.atomic():
        lease.finish()
        cancelling = rivals.start_and_see_it_wait(lambda: cancel(Job, [lease.pk], by="ann"))
    assert cancelling.result() == []
    assert jobs.row(lease.pk)["status"] == "success"
    assert jobs.event_types(lease.pk) == ["job:finished"]


# Cancel and fail.


def test_a_job_cancelled_before_its_attempt_failed_is_not_retried(
    jobs: Rows, rivals: Rivals
) -> None:
    lease = claimed(jobs)
    with transaction.atomic():
        cancel(Job, [lease.pk], by="ann")
        failing = rivals.start_and_see_it_wait(lambda: lease.fail("E1"))
    with pytest.raises(LeaseLost):
        failing.result()
    row = jobs.row(lease.pk)
    assert (row["status"], row["fail_code"]) == ("cancelled", None)


def test_a_job_whose_attempt_just_failed_is_cancelled_before_its_retry(
    jobs: Rows, rivals: Rivals
) -> None:
    lease = claimed(jobs)
    with transaction.atomic():
        lease.fail("E1")
        cancelling = rivals.start_and_see_it_wait(lambda: cancel(Job, [lease.pk], by="ann"))
    assert cancelling.result() == [lease.pk]
    assert jobs.row(lease.pk)["status"] == "cancelled"
    assert jobs.event_types(lease.pk) == ["job:retried", "admin:cancelled"]


# Requeue by hand and finish.


def test_a_job_requeued_by_hand_before_it_was_finished_runs_again(
    jobs: Rows, rivals: Rivals
) -> None:
    lease = claimed(jobs)
    with transaction.atomic():
        requeue(Job, [lease.pk], by="ann")
        finish = rivals.start_and_see_it_wait(lease.finish)
    with pytest.raises(LeaseLost):
        finish.result()
    assert claim(Job, lease.pk)


def test_a_job_finished_before_it_was_requeued_by_hand_is_not_run_again(
    jobs: Rows, rivals: Rivals
) -> None:
    lease = claimed(jobs)
    with transaction.atomic():
        lease.finish()
        requeueing = rivals.start_and_see_it_wait(lambda: requeue(Job, [lease.pk], by="ann"))
    assert requeueing.result() == []
    assert jobs.row(lease.pk)["status"] == "success"
    assert claim(Job, lease.pk) is None


# Operator and reaper, operator and operator.


def test_a_reaper_passes_over_a_job_that_an_operator_is_changing(
    jobs: Rows, rivals: Rivals
) -> None:
    key = jobs.plant_expired()
    with transaction.atomic():
        cancel(Job, [key], by="ann")
        assert rivals.start(lambda: reap([Job], hold=False)).result().requeued == 0
    assert jobs.event_types(key) == ["admin:cancelled"]


def test_an_operator_finds_a_job_that_was_just_reaped_as_it_is_now(
    jobs: Rows, rivals: Rivals
) -> None:
    key = jobs.plant_expired(attempt_count=3)
    with transaction.atomic():
        assert reap([Job], hold=False).failed == 1
        requeueing = rivals.start_and_see_it_wait(lambda: requeue(Job, [key], by="ann"))
    assert requeueing.result() == [key]
    row = jobs.row(key)
    assert (row["status"], row["attempt_count"], row["lease_epoch"]) == ("queued", 0, 3)
    events = jobs.events(key)
    assert [event["type"] for event in events] == ["reaper:failed(timeout)", "admin:requeued"]
    # What was before is what the reaper left, and not what the operator saw on the screen.
    assert events[1]["details"]["from_status"] == "failed"


def test_two_operators_change_a_job_once(jobs: Rows, rivals: Rivals) -> None:
    key = jobs.plant()
    with transaction.atomic():
        assert cancel(Job, [key], by="ann") == [key]
        failing = rivals.start_and_see_it_wait(lambda: fail(Job, [key], by="bob"))
    assert failing.result() == []
    assert jobs.event_types(key) == ["admin:cancelled"]


def test_operators_who_chose_the_same_jobs_in_another_order_do_not_deadlock(
    jobs: Rows, rivals: Rivals
) -> None:
    planted = [jobs.plant() for _ in range(50)]
    forward = rivals.start(lambda: cancel(Job, planted, by="ann"))
    backward = rivals.start(lambda: cancel(Job, planted[::-1], by="bob"))
    changed = forward.result() + backward.result()
    assert sorted(changed) == planted
    assert all(jobs.event_types(key) == ["admin:cancelled"] for key in planted)


def test_a_retry_that_is_due_is_claimed_though_a_late_cancel_is_on_its_way(
    jobs: Rows, rivals: Rivals
) -> None:
    key = jobs.plant(next_earliest_run_at=ago(1))
    with transaction.atomic():
        assert claim(Job, key)
        cancelling = rivals.start_and_see_it_wait(lambda: cancel(Job, [key], by="ann"))
        transaction.set_rollback(True)
    assert cancelling.result() == [key]
    assert jobs.row(key)["attempt_count"] == 0
