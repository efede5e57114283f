"""`job.save()` under a lease: the work's own columns are the worker's, as long as the job is."""

import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models.signals import pre_save

from jobreaper import LeaseLost, cancel, claim, hold
from jobreaper.base import PROTOCOL_FIELDS
from project.media.models import Job
from tests.rows import Rows, Sql


def claimed(jobs: Rows) -> Job:
    lease = claim(Job, jobs.plant(payload='{"by": "nobody"}'))
    assert lease is not None
    job: Job = lease.job
    return job


def test_a_holders_save_is_written(jobs: Rows) -> None:
    job = claimed(jobs)
    job.payload = {"by": "the holder"}
    job.stage = "clip"
    job.save()
    row = jobs.row(job.pk)
    assert (row["payload"], row["stage"]) == ({"by": "the holder"}, "clip")


def test_the_protocols_columns_are_left_alone(jobs: Rows) -> None:
    job = claimed(jobs)
    # A beat, an operator's change or a reap may have moved them since the claim.
    jobs.set(job.pk, next_earliest_run_at=None, reap_count=7, fail_code="E1")
    before = jobs.row(job.pk)
    for field in PROTOCOL_FIELDS:
        setattr(job, field, None)
    job.payload = {}
    job.save()
    assert jobs.row(job.pk) == {**before, "payload": {}}


@pytest.mark.parametrize("given", [None, ["payload"]])
def test_a_save_after_the_job_was_taken_away_writes_nothing(
    jobs: Rows, given: list[str] | None
) -> None:
    job = claimed(jobs)
    cancel(Job, [job.pk], by="ann")
    before = jobs.row(job.pk)
    job.payload = {"by": "a stale worker"}
    with pytest.raises(LeaseLost, match="save was rejected"):
        job.save(update_fields=given)
    assert jobs.row(job.pk) == before
    assert jobs.events(job.pk)[-1]["details"]["verb"] == "save"


def test_a_save_after_a_new_claim_writes_nothing(jobs: Rows) -> None:
    job = claimed(jobs)
    jobs.set(job.pk, lease_epoch=3, locked_by="w2")
    with pytest.raises(LeaseLost):
        job.save()


def test_a_result_may_still_be_saved_after_the_finish(jobs: Rows) -> None:
    with hold(Job, jobs.plant()) as lease:
        pass
    lease.job.payload = {"took": 5}
    lease.job.save()
    row = jobs.row(lease.pk)
    assert (row["status"], row["payload"]) == ("success", {"took": 5})


def test_a_save_is_part_of_the_callers_transaction(jobs: Rows) -> None:
    job = claimed(jobs)
    job.payload = {"by": "the holder"}
    with transaction.atomic():
        job.save()
        transaction.set_rollback(True)
    assert jobs.row(job.pk)["payload"] == {"by": "nobody"}


def test_columns_that_were_named_are_written_and_no_other(jobs: Rows) -> None:
    job = claimed(jobs)
    job.payload, job.stage = {"by": "the holder"}, "clip"
    job.save(update_fields=["stage"])
    row = jobs.row(job.pk)
    assert (row["payload"], row["stage"]) == ({"by": "nobody"}, "clip")


def test_a_job_that_came_out_of_no_claim_is_saved_without_one(jobs: Rows, sql: Sql) -> None:
    job = Job.objects.create(stage="clip")
    jobs.set(job.pk, status="processing", locked_by="another", lease_epoch=1)
    job.payload = {"by": "an editor"}
    job.save()
    assert jobs.row(job.pk)["payload"] == {"by": "an editor"}


def test_a_copy_in_another_process_has_no_lease(jobs: Rows) -> None:
    job = claimed(jobs)
    unpickled = pickle.loads(pickle.dumps(job))  # noqa: S301
    assert unpickled._lease is None
    assert job._lease is not None
    assert unpickled.pk == job.pk


@pytest.mark.parametrize("make", [copy, deepcopy])
def test_a_copy_in_this_process_is_saved_under_the_same_lease(
    make: Callable[[Job], Job], jobs: Rows
) -> None:
    job = claimed(jobs)
    job.payload = {"nested": []}
    made = make(job)
    made.payload["nested"].append(1)
    assert job.payload == {"nested": [1] if make is copy else []}
    made.save()
    assert jobs.row(job.pk)["payload"] == {"nested": [1]}
    cancel(Job, [job.pk], by="ann")
    with pytest.raises(LeaseLost):
        made.save()
    again = make(Job.objects.get(pk=job.pk))
    again.pk = None
    again._state.adding = True
    again.save()
    assert again.pk != job.pk


def test_a_save_survives_a_session_that_was_ended_in_idleness(jobs: Rows, sql: Sql) -> None:
    job = claimed(jobs)
    sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
    job.payload = {"by": "the holder"}
    job.save()
    assert jobs.row(job.pk)["payload"] == {"by": "the holder"}


def test_a_save_that_has_begun_is_not_begun_again(
    jobs: Rows, sql: Sql, request: pytest.FixtureRequest
) -> None:
    """Its signals are somebody else's."""
    job = claimed(jobs)
    told = []

    def listen(**_: Any) -> None:
        told.append(True)
        sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)

    pre_save.connect(listen, sender=Job)
    request.addfinalizer(lambda: pre_save.disconnect(listen, sender=Job))
    with pytest.raises(OperationalError):
        job.save()
    assert told == [True]
