"""Ending a job by its id: fenced as far as an id goes."""

import uuid

import pytest

from jobreaper import LeaseLost, claim, enqueue, mark_failure, mark_success, reap
from jobreaper.models import Job
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("transactional_db")


def test_a_running_job_is_marked_as_done(jobs: Rows) -> None:
    job = enqueue("mail")
    claim(Job, job.pk)
    mark_success(job.pk)
    row = jobs.row(job.pk)
    assert (row["status"], row["locked_by"]) == ("success", None)
    assert jobs.event_types(job.pk) == ["job:enqueued", "job:finished"]


def test_an_id_may_be_text(jobs: Rows) -> None:
    job = enqueue("mail")
    claim(Job, job.pk)
    mark_success(str(job.pk))
    assert jobs.row(job.pk)["status"] == "success"


def test_a_failure_goes_back_while_attempts_are_left(jobs: Rows) -> None:
    job = enqueue("mail", max_attempts=2)
    claim(Job, job.pk)
    assert mark_failure(job.pk, ValueError("wrong address"))
    row = jobs.row(job.pk)
    assert (row["status"], row["fail_code"], row["fail_reason"]) == (
        "queued",
        "ValueError",
        "wrong address",
    )
    jobs.let_time_pass(job.pk, 3600)
    claim(Job, job.pk)
    assert not mark_failure(job.pk, "no such mailbox")
    row = jobs.row(job.pk)
    assert (row["status"], row["fail_code"], row["fail_reason"]) == (
        "failed",
        "error",
        "no such mailbox",
    )


@pytest.mark.parametrize("status", ["queued", "success", "failed", "cancelled"])
def test_a_job_that_does_not_run_is_not_marked(status: str, jobs: Rows) -> None:
    key = jobs.plant(status=status)
    before = jobs.row(key)
    with pytest.raises(LeaseLost):
        mark_success(key)
    with pytest.raises(LeaseLost):
        mark_failure(key, "error")
    assert jobs.row(key) == before
    assert jobs.event_types(key) == ["job:stale_write_rejected"] * 2


def test_with_the_epoch_a_caller_that_lost_the_job_is_told(jobs: Rows) -> None:
    job = enqueue("mail")
    lost = claim(Job, job.pk)
    assert lost is not None
    jobs.set(job.pk, lease_expires_at=ago(1))
    assert reap([Job]).requeued == 1
    jobs.let_time_pass(job.pk, 3600)
    holder = claim(Job, job.pk)
    assert holder is not None
    with pytest.raises(LeaseLost):
        mark_success(job.pk, epoch=lost.epoch)
    with pytest.raises(LeaseLost):
        mark_failure(job.pk, "error", epoch=lost.epoch)
    assert jobs.row(job.pk)["status"] == "processing"
    mark_success(job.pk, epoch=holder.epoch)
    assert jobs.row(job.pk)["status"] == "success"


def test_an_unknown_job_is_nobodys() -> None:
    with pytest.raises(LeaseLost, match="there is no job"):
        mark_success(uuid.uuid4())
