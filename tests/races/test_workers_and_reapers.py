"""Two connections want the same job. Whoever comes second is seen to wait, or gets nothing."""

from typing import Any

import pytest
from django.db import connection, transaction

from jobreaper import Lease, LeaseLost, claim, claim_next, reap
from jobreaper.reaper import PassResult
from project.media.models import Job
from tests.races.rivals import Rivals
from tests.rows import Rows, ago


def claimed(jobs: Rows, **columns: Any) -> Lease:
    lease = claim(Job, jobs.plant(**columns))
    assert lease is not None
    return lease


def overdue(jobs: Rows) -> Lease:
    """A lease that ran out while its worker is still at it."""
    lease = claimed(jobs)
    jobs.set(lease.pk, lease_expires_at=ago(1))
    return lease


def reap_jobs() -> PassResult:
    result = reap([Job], hold=False)
    assert result.all_errors == []
    return result


# Finish and reap.


def test_a_worker_that_finishes_while_the_reaper_decides_is_told_that_it_lost(
    jobs: Rows, rivals: Rivals
) -> None:
    lease = overdue(jobs)
    with transaction.atomic():
        assert reap_jobs().requeued == 1
        finish = rivals.start_and_see_it_wait(lease.finish)
    with pytest.raises(LeaseLost):
        finish.result()
    assert jobs.row(lease.pk)["status"] == "queued"
    assert jobs.event_types(lease.pk) == ["reaper:requeued", "job:stale_write_rejected"]


def test_a_worker_that_finishes_while_the_reaper_decides_and_gives_up_keeps_its_success(
    jobs: Rows, rivals: Rivals
) -> None:
    lease = overdue(jobs)
    with transaction.atomic():
        assert reap_jobs().requeued == 1
        finish = rivals.start_and_see_it_wait(lease.finish)
        transaction.set_rollback(True)
    finish.result()
    assert jobs.row(lease.pk)["status"] == "success"
    assert jobs.event_types(lease.pk) == ["job:finished"]


def test_a_reaper_that_comes_while_a_worker_finishes_leaves_it_its_success(
    jobs: Rows, rivals: Rivals
) -> None:
    lease = overdue(jobs)
    with transaction.atomic():
        lease.finish()
        # It does not wait for the worker's transaction, however long that takes.
        assert rivals.start(reap_jobs).result().requeued == 0
    assert jobs.row(lease.pk)["status"] == "success"
    assert reap_jobs().requeued == 0
    assert jobs.event_types(lease.pk) == ["job:finished"]


def test_a_reaper_whose_snapshot_is_older_than_the_finish_writes_nothing(
    jobs: Rows, rivals: Rivals
) -> None:
    # A table lock stops the reaper after its statement began, and before it looks at a row.
    lease = overdue(jobs)
    with transaction.atomic():
        lease.finish()
        lock_the_table()
        pass_ = rivals.start_and_see_it_wait(reap_jobs)
    assert pass_.result().requeued == 0
    assert jobs.row(lease.pk)["status"] == "success"
    assert jobs.event_types(lease.pk) == ["job:finished"]


def lock_the_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")


@pytest.mark.parametrize("verb", ["finish", "release"])
def test_a_worker_that_lost_to_the_reaper_waits_for_nobody_else(
    jobs: Rows, rivals: Rivals, verb: str
) -> None:
    lease, other = overdue(jobs), claimed(jobs)
    with transaction.atomic():
        other.finish()
        reap_jobs()
        late = rivals.start_and_see_it_wait(getattr(lease, verb))
    with pytest.raises(LeaseLost):
        late.result()
    assert jobs.row(other.pk)["status"] == "success"


def test_two_hundred_reaps_and_finishes_against_each_other_lose_nothing(
    jobs: Rows, rivals: Rivals
) -> None:
    leases = [overdue(jobs) for _ in range(200)]

    def finish_all() -> int:
        kept = 0
        for lease in leases:
            try:
                lease.finish()
                kept += 1
            except LeaseLost:
                pass
        return kept

    def reap_in_small_batches() -> int:
        taken = 0
        while Job.objects.running().exists():
            taken += reap([Job], batch_size=3, hold=False).requeued
        return taken

    # The reaper begins where the worker ends, so that both have something to take.
    for n, lease in enumerate(leases):
        jobs.set(lease.pk, lease_expires_at=ago(1 + n))
    reaper = rivals.start(reap_in_small_batches)
    worker = rivals.start(finish_all)
    kept, taken = worker.result(), reaper.result()
    assert kept + taken == 200
    rows = jobs.all()
    for lease in leases:
        types = jobs.event_types(lease.pk)
        if rows[lease.pk]["status"] == "success":
            assert types == ["job:finished"]
        else:
            assert rows[lease.pk]["status"] == "queued"
            assert sorted(types) == ["job:stale_write_rejected", "reaper:requeued"]
    assert sum(row["status"] == "success" for row in rows.values()) == kept


# Beat and reap.


def test_a_beat_that_comes_while_the_reaper_decides_does_not_wait_and_is_told_at_the_next(
    jobs: Rows, rivals: Rivals
) -> None:
    lease = overdue(jobs)
    with transaction.atomic():
        assert reap_jobs().requeued == 1
        rivals.start(lease.heartbeat).result()
    with pytest.raises(LeaseLost):
        lease.heartbeat()
    assert jobs.row(lease.pk)["status"] == "queued"


def test_a_reaper_that_comes_while_a_worker_beats_leaves_it_its_job(
    jobs: Rows, rivals: Rivals
) -> None:
    lease = overdue(jobs)
    with transaction.atomic():
        lease.heartbeat()
        assert rivals.start(reap_jobs).result().requeued == 0
    assert reap_jobs().requeued == 0
    lease.finish()
    assert jobs.row(lease.pk)["status"] == "success"


def test_a_reaper_whose_snapshot_is_older_than_the_beat_leaves_the_job_alone(
    jobs: Rows, rivals: Rivals
) -> None:
    lease = overdue(jobs)
    with transaction.atomic():
        lease.heartbeat()
        lock_the_table()
        pass_ = rivals.start_and_see_it_wait(reap_jobs)
    assert pass_.result().requeued == 0
    assert jobs.row(lease.pk)["status"] == "processing"


def test_a_late_beat_does_not_steal_the_lease_back(jobs: Rows) -> None:
    stale = overdue(jobs)
    reap_jobs()
    jobs.set(stale.pk, next_earliest_run_at=ago(1))
    assert claim(Job, stale.pk, worker="w2")
    before = jobs.row(stale.pk)
    with pytest.raises(LeaseLost):
        stale.heartbeat()
    assert jobs.row(stale.pk) == before


# Claim and claim.


def test_a_second_claim_of_a_job_gets_nothing_and_does_not_wait(jobs: Rows, rivals: Rivals) -> None:
    key = jobs.plant()
    with transaction.atomic():
        assert claim(Job, key)
        assert rivals.start(lambda: claim(Job, key)).result() is None
    assert jobs.row(key)["lease_epoch"] == 1


def test_a_claim_of_the_next_job_passes_over_one_that_is_just_being_claimed(
    jobs: Rows, rivals: Rivals
) -> None:
    first, second = jobs.plant(), jobs.plant()
    with transaction.atomic():
        assert [lease.pk for lease in claim_next(Job)] == [first]
        others = rivals.start(lambda: [lease.pk for lease in claim_next(Job, 2)])
        assert others.result() == [second]


def test_a_claim_whose_snapshot_is_older_than_another_claim_gets_nothing(
    jobs: Rows, rivals: Rivals
) -> None:
    key = jobs.plant()
    with transaction.atomic():
        assert claim(Job, key, worker="w1")
        lock_the_table()
        second = rivals.start_and_see_it_wait(lambda: claim(Job, key, worker="w2"))
    assert second.result() is None
    assert jobs.row(key)["locked_by"] == "w1"


def test_many_workers_claim_each_job_once(jobs: Rows, rivals: Rivals) -> None:
    planted = [jobs.plant() for _ in range(60)]

    def claim_all() -> list[Any]:
        mine: list[Any] = []
        while leases := claim_next(Job, 3):
            mine += [lease.pk for lease in leases]
        return mine

    workers = [rivals.start(claim_all) for _ in range(4)]
    claimed_by_all = [key for worker in workers for key in worker.result()]
    # A job may be passed over while another claim has it locked, and is never lost by that.
    claimed_by_all += [lease.pk for lease in claim_next(Job, 60)]
    assert sorted(claimed_by_all) == planted
    assert all(row["attempt_count"] == 1 for row in jobs.all().values())


# Reaper and reaper.


def test_a_second_reaper_gets_nothing_and_does_not_wait(jobs: Rows, rivals: Rivals) -> None:
    lease = overdue(jobs)
    with transaction.atomic():
        assert reap_jobs().requeued_ids["jobs"] == [lease.pk]
        assert rivals.start(reap_jobs).result().requeued == 0
    assert jobs.event_types(lease.pk) == ["reaper:requeued"]
    assert jobs.row(lease.pk)["reap_count"] == 1


def test_a_reaper_whose_snapshot_is_older_than_another_pass_gets_nothing(
    jobs: Rows, rivals: Rivals
) -> None:
    lease = overdue(jobs)
    with transaction.atomic():
        reap_jobs()
        lock_the_table()
        second = rivals.start_and_see_it_wait(reap_jobs)
    assert second.result().requeued == 0
    assert jobs.event_types(lease.pk) == ["reaper:requeued"]


def test_several_reapers_requeue_each_job_once_and_leave_one_event(
    jobs: Rows, rivals: Rivals
) -> None:
    planted = [jobs.plant_expired() for _ in range(120)]
    passes = [rivals.start(lambda: reap([Job], batch_size=7, hold=False)) for _ in range(4)]
    taken = [key for pass_ in passes for key in pass_.result().requeued_ids["jobs"]]
    taken += reap_jobs().requeued_ids["jobs"]
    assert sorted(taken) == planted
    assert all(jobs.event_types(key) == ["reaper:requeued"] for key in planted)
    assert all(row["lease_epoch"] == 2 for row in jobs.all().values())


# Release, fail and reap.


@pytest.mark.parametrize(("verb", "event"), [("release", "job:released"), ("fail", "job:retried")])
def test_a_reaper_that_comes_while_a_worker_gives_the_job_back_takes_nothing(
    jobs: Rows, rivals: Rivals, verb: str, event: str
) -> None:
    lease = overdue(jobs)
    with transaction.atomic():
        lease.release() if verb == "release" else lease.fail("E1")
        assert rivals.start(reap_jobs).result().requeued == 0
    assert reap_jobs().requeued == 0
    assert jobs.event_types(lease.pk) == [event]


@pytest.mark.parametrize("verb", ["release", "fail"])
def test_a_worker_that_gives_the_job_back_after_the_reaper_did_changes_nothing(
    jobs: Rows, rivals: Rivals, verb: str
) -> None:
    lease = overdue(jobs)
    with transaction.atomic():
        assert reap_jobs().requeued == 1
        late = rivals.start_and_see_it_wait(
            lambda: lease.release() if verb == "release" else lease.fail("E1")
        )
    with pytest.raises(LeaseLost):
        late.result()
    row = jobs.row(lease.pk)
    assert (row["status"], row["attempt_count"], row["fail_code"]) == ("queued", 1, None)
