"""Dedupe: what `enqueue()` does where a live job has the key."""

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from jobreaper import (
    cancel,
    claim,
    enqueue,
    fail,
    make_dedupe_key,
    reap,
    requeue,
)
from jobreaper.models import Job
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("transactional_db")


def test_without_dedupe_nothing_is_merged_and_no_key_is_kept(jobs: Rows) -> None:
    assert enqueue("mail", {"a": 1}).pk != enqueue("mail", {"a": 1}).pk
    assert enqueue("mail", dedupe_key="k").pk != enqueue("mail", dedupe_key="k").pk
    assert {row["dedupe_key"] for row in jobs.all().values()} == {None}


def test_skip_returns_the_job_that_is_there_as_it_is(jobs: Rows) -> None:
    job = enqueue("mail", {"a": 2.0, "b": 1}, org_id="acme", dedupe="skip")
    before = jobs.all()
    again = enqueue("mail", {"b": 1, "a": 2}, org_id="acme", dedupe="skip", priority=5)
    assert (again.pk, again.priority) == (job.pk, 0)
    assert jobs.all() == before
    assert job.dedupe_key == make_dedupe_key("mail", "acme", {"a": 2, "b": 1})
    assert jobs.event_types(job.pk) == ["job:enqueued"]


@pytest.mark.parametrize(
    "other", [{"org_id": "other"}, {"payload": {"a": 2}}, {"type": "sms"}, {"dedupe_key": "mine"}]
)
def test_another_type_owner_payload_or_key_is_another_job(other: dict[str, Any]) -> None:
    same: dict[str, Any] = {"type": "mail", "payload": {"a": 1}, "org_id": "acme", "dedupe": "skip"}
    assert enqueue(**same).pk != enqueue(**{**same, **other}).pk


def test_a_key_of_ones_own_takes_the_computed_ones_place(jobs: Rows) -> None:
    job = enqueue("mail", {"a": 1}, dedupe="skip", dedupe_key="daily")
    assert enqueue("sms", {"b": 2}, dedupe="skip", dedupe_key="daily").pk == job.pk
    assert jobs.row(job.pk)["dedupe_key"] == "daily"


def test_replace_gives_a_queued_job_the_new_payload_and_time(jobs: Rows) -> None:
    job = enqueue("mail", {"a": 1}, dedupe="replace", dedupe_key="k")
    jobs.set(job.pk, attempt_count=1, dispatched_at=ago(1))
    run_at = datetime(2030, 1, 1, tzinfo=UTC)
    again = enqueue("mail", {"a": 2}, run_at=run_at, priority=4, dedupe="replace", dedupe_key="k")
    row = jobs.row(job.pk)
    assert again.pk == job.pk
    assert (again.payload, again.next_earliest_run_at, again.priority) == ({"a": 2}, run_at, 4)
    assert (row["payload"], row["next_earliest_run_at"], row["priority"]) == ({"a": 2}, run_at, 4)
    assert (row["attempt_count"], row["dispatched_at"]) == (1, None)
    assert [event["details"]["replaced"] for event in jobs.events(job.pk)] == [False, True]


def test_replace_leaves_a_running_job_alone_and_returns_it(jobs: Rows) -> None:
    job = enqueue("mail", {"a": 1}, dedupe="replace", dedupe_key="k")
    claim(Job, job.pk)
    before = jobs.row(job.pk)
    again = enqueue("mail", {"a": 2}, dedupe="replace", dedupe_key="k")
    assert (again.pk, again.status, again.payload) == (job.pk, "processing", {"a": 1})
    assert jobs.all() == {job.pk: before}


@pytest.mark.parametrize("length", [1_000, 3_000, 1_000_000])
def test_a_long_payload_has_a_key_like_any_other(length: int, jobs: Rows) -> None:
    # Letters that do not compress: an index row holds 2,700 bytes.
    payload = {"text": "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(length))}
    job = enqueue("mail", payload, dedupe="skip")
    assert enqueue("mail", payload, dedupe="skip").pk == job.pk
    assert enqueue("mail", {**payload, "n": 1}, dedupe="skip").pk != job.pk
    assert jobs.row(job.pk)["dedupe_key"] == make_dedupe_key("mail", None, payload)


@pytest.mark.parametrize("key", ["back\\slash", "\\000", "'quote'", "%s", "ü\n😀"])
def test_any_text_is_a_key(key: str) -> None:
    job = enqueue("mail", dedupe="skip", dedupe_key=key)
    assert enqueue("mail", dedupe="skip", dedupe_key=key).pk == job.pk
    assert enqueue("mail", dedupe="skip", dedupe_key=key + "!").pk != job.pk


def end_by_success(job: Job) -> None:
    lease = claim(Job, job.pk)
    assert lease is not None
    lease.finish()


def end_by_failure(job: Job) -> None:
    lease = claim(Job, job.pk)
    assert lease is not None
    lease.fail("E", retry=False)


def end_by_cancel(job: Job) -> None:
    cancel(Job, [job.pk], by="ann")


def end_by_reaper(job: Job) -> None:
    claim(Job, job.pk)
    Job.objects.filter(pk=job.pk).update(lease_expires_at=datetime(2000, 1, 1, tzinfo=UTC))
    assert reap([Job]).failed == 1


@pytest.mark.parametrize("end", [end_by_success, end_by_failure, end_by_cancel, end_by_reaper])
def test_a_key_is_free_again_when_its_job_has_ended(end: Any) -> None:
    """openedx#25461: a dead holder of a unique key must not block every new job."""
    job = enqueue("mail", dedupe="skip", max_attempts=1)
    end(job)
    again = enqueue("mail", dedupe="skip")
    assert again.pk != job.pk


def test_a_key_stays_taken_through_retries_and_reaps() -> None:
    job = enqueue("mail", dedupe="skip")
    lease = claim(Job, job.pk)
    assert lease is not None
    lease.fail("E")
    assert enqueue("mail", dedupe="skip").pk == job.pk


def test_an_operator_cannot_make_two_live_jobs_of_one_key() -> None:
    first, second = (ended_with_key() for _ in range(2))
    assert requeue(Job, [first.pk, second.pk], by="ann") == [second.pk]
    assert requeue(Job, [first.pk], by="ann") == []
    assert fail(Job, [second.pk], by="ann") == [second.pk]
    assert requeue(Job, [first.pk], by="ann") == [first.pk]


def ended_with_key() -> Job:
    job = enqueue("mail", dedupe="skip")
    end_by_failure(job)
    return job


def test_a_foreign_writer_is_held_to_unique_keys_too(jobs: Rows) -> None:
    jobs.plant(dedupe_key="k")
    with pytest.raises(psycopg.errors.UniqueViolation):
        jobs.plant(dedupe_key="k")
    jobs.plant(dedupe_key="k", status="success")
