"""Rows of another queue become jobs: once, whole, and beside its workers; and back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.utils.timezone import now

import jobreaper
from jobreaper import moving
from jobreaper.models import Job, JobEvent
from jobreaper.moving import OldJob
from jobreaper.states import EventType
from project.media.models import Job as Old
from tests.refusals import refusing
from tests.rows import Sql

pytestmark = pytest.mark.usefixtures("transactional_db")

WAITING = Old.objects.filter(status="queued")
MARK = {"status": "cancelled"}


def described(row: Old) -> OldJob:
    return OldJob(type="mail", payload=row.payload, queue="slow", priority=3, max_attempts=7)


def planted(number: int = 1, **fields: Any) -> list[Old]:
    return Old.objects.bulk_create(Old(payload={"n": n}, **fields) for n in range(number))


def carried(describe: Any = described, mark: Any = MARK, rows: Any = WAITING) -> moving.Moved:
    return moving.carry_over(rows, describe, mark=mark, rows_a_transaction=2)


def test_each_row_becomes_one_job_in_its_order_and_is_out_of_its_queue() -> None:
    rows = planted(5)
    assert carried() == moving.Moved(moved=5)
    assert carried() == moving.Moved()
    leases = jobreaper.claim_next(Job, 9, queues=["slow"])
    assert [lease.job.payload["n"] for lease in leases] == [0, 1, 2, 3, 4]
    assert [lease.pk for lease in leases] == [moving.job_id(row) for row in rows]
    assert {(lease.job.priority, lease.job.max_attempts) for lease in leases} == {(3, 7)}
    events = JobEvent.objects.filter(type=EventType.JOB_CARRIED_OVER)
    assert {event.details["former_key"]: event.job_id for event in events} == {
        str(row.pk): str(moving.job_id(row)) for row in rows
    }
    assert len(events) == 5


def test_a_job_for_later_is_due_when_it_was() -> None:
    later = now() + timedelta(hours=5)
    planted()
    carried(
        lambda row: OldJob(type="mail", run_at=later, created_at=datetime(2026, 1, 2, tzinfo=UTC))
    )
    job = Job.objects.get()
    assert (job.next_earliest_run_at, job.created_at.day) == (later, 2)


def test_a_row_that_a_worker_is_claiming_is_left_for_the_next_time(
    second_connection: psycopg.Connection[Any],
) -> None:
    first, _, third = planted(3)
    second_connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [first.pk])
    assert carried().moved == 2
    second_connection.execute("UPDATE jobs SET status = 'processing' WHERE id = %s", [first.pk])
    second_connection.commit()
    assert carried() == moving.Moved()
    assert not Job.objects.filter(pk=moving.job_id(first)).exists()
    assert Job.objects.filter(pk=moving.job_id(third)).exists()


def test_what_cannot_be_moved_stays_where_it_is_and_is_named(sql: Sql) -> None:
    def describe(row: Old) -> OldJob | None:
        n = row.payload["n"]
        if n == 0:
            raise ValueError("it has a lock")
        if n == 1:
            return None
        key = "taken" if n == 2 else None
        bad = {"bad": object()} if n == 3 else {"bad": 1} if n == 4 else {}
        return OldJob(type="mail", payload=bad, dedupe_key=key)

    jobreaper.enqueue("mail", dedupe="skip", dedupe_key="taken")
    rows = planted(6)
    with refusing(sql, "jobreaper_jobs", "check"):
        result = carried(describe)
        assert (result.moved, result.left) == (1, 1)
        assert sorted(result.refused) == [rows[n].pk for n in (0, 2, 3, 4)]
        assert "it has a lock" in str(result)
    assert list(WAITING.order_by("pk")) == rows[:5]
    assert Job.objects.filter(pk=moving.job_id(rows[5])).exists()


@pytest.mark.parametrize("mark", [None, {"stage": "moved"}], ids=["none", "useless"])
def test_a_job_that_would_run_in_both_queues_is_not_made(mark: Any) -> None:
    planted()
    with pytest.raises(ValueError, match=r"needs a mark|does not take"):
        carried(mark=mark)
    assert not Job.objects.exists()
    assert not Old.objects.exclude(stage=None).exists()


def test_ended_jobs_are_copied_with_what_became_of_them() -> None:
    ended = Old.objects.filter(status__in=["success", "failed"])
    done = planted(status="success")[0]
    broken = planted(status="failed")[0]

    def describe(row: Old) -> OldJob:
        failure = {"exception": "shop.NoPaper", "traceback": "Traceback…\nshop.NoPaper: tray 2\n"}
        more = failure if row == broken else {"result": {"pages": 3}}
        return OldJob(type="mail", status=row.status, attempts=2, worker="old-1", **more)

    assert carried(describe, None, ended).moved == 2
    assert carried(describe, None, ended) == moving.Moved(there=2)
    job = Job.objects.get(pk=moving.job_id(done))
    assert (job.status, job.result, job.attempt_count) == ("success", {"pages": 3}, 2)
    job = Job.objects.get(pk=moving.job_id(broken))
    assert (job.status, job.fail_code, job.fail_reason) == (
        "failed",
        "NoPaper",
        "shop.NoPaper: tray 2",
    )
    assert job.finished_at is not None
    assert jobreaper.requeue(Job, [job.pk], by="ann") == [job.pk]


def test_queued_jobs_are_given_back_and_no_other() -> None:
    def enqueue(job: Job) -> None:
        Old.objects.create(payload=job.payload)
        if job.payload["n"] == 1:
            raise ValueError("no such task")

    jobreaper.enqueue("mail", {"n": 3}, priority=1)
    [running] = jobreaper.claim_next(Job)
    jobs = [jobreaper.enqueue("mail", {"n": n}) for n in range(3)]
    result = moving.hand_back(enqueue, by="ann", rows_a_transaction=2)
    assert (result.moved, list(result.refused)) == (2, [jobs[1].pk])
    assert sorted(row.payload["n"] for row in Old.objects.all()) == [0, 2]
    assert [job.payload["n"] for job in Job.objects.filter(status="queued")] == [1]
    assert Job.objects.filter(status="cancelled").count() == 2
    running.finish()
