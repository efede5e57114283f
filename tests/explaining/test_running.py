"""Why a running job stands still, how one has ended, and its attempts."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils.timezone import now

import jobreaper
from jobreaper.explaining import Attempt, explain_many
from jobreaper.models import ReaperPass, RefusedRow
from jobreaper.states import EventType, Verb, Why
from jobreaper.tables import table_of
from project.documents.models import ExecutorJob
from project.media.models import Job
from tests.admin.conftest import claimed, execute

pytestmark = pytest.mark.django_db


def lost(seconds: int = 60, **fields: Any) -> Job:
    """A running job whose lease ran out so long ago."""
    lease = claimed(**fields)
    execute(
        "UPDATE jobs SET claimed_at = now() - %s * interval '1 second' - interval '10 min', "
        "last_heartbeat_at = now() - %s * interval '1 second' - interval '5 min', "
        "lease_expires_at = now() - %s * interval '1 second' WHERE id = %s",
        *[seconds] * 3,
        lease.pk,
    )
    return Job.objects.get(pk=lease.pk)


def passed(**fields: Any) -> None:
    ReaperPass.objects.create(reaper="r:1:a", started_at=now() - timedelta(seconds=1), **fields)


def explained(job: Any) -> dict[Why, str]:
    return {reason.code: reason.text for reason in jobreaper.explain(job).reasons}


def test_a_job_that_runs_says_on_which_worker() -> None:
    lease = claimed("web-1:7:x")
    found = jobreaper.explain(Job.objects.get(pk=lease.pk))
    assert [reason.code for reason in found.reasons] == [Why.RUNNING]
    assert "web-1:7:x" in found.headline
    assert found.next_at is not None


def test_a_silent_worker_is_called_so() -> None:
    lease = claimed()
    execute("UPDATE jobs SET last_heartbeat_at = now() - interval '4 min' WHERE id = %s", lease.pk)
    assert Why.SILENT in explained(Job.objects.get(pk=lease.pk))


def test_after_the_lease_it_says_what_the_next_pass_will_do() -> None:
    passed()
    found = jobreaper.explain(lost())
    assert [reason.code for reason in found.reasons] == [Why.EXPIRED]
    assert "back to the queue after attempt 1 of 3" in found.next
    assert found.next_at is not None


def test_the_last_attempt_will_fail() -> None:
    passed()
    assert "fails with the code timeout" in jobreaper.explain(lost(max_attempts=1)).next


def test_without_a_reaper_it_says_that_no_pass_runs() -> None:
    found = explained(lost())
    assert Why.NO_REAPER in found
    ReaperPass.objects.create(reaper="r:1:a", started_at=now() - timedelta(hours=2))
    assert "2 h 0 min ago" in explained(lost())[Why.NO_REAPER]


def test_a_held_pass_says_why() -> None:
    passed(held=True, held_reason="PostgreSQL came up 3 s ago")
    assert "PostgreSQL came up 3 s ago" in explained(lost())[Why.HELD]


def test_a_row_that_no_pass_can_write_says_why() -> None:
    passed()
    job = lost()
    RefusedRow.objects.create(
        table="jobs", verb=Verb.REAP, key=str(job.pk), error="no!", next_try_at=now()
    )
    assert "no!" in explained(job)[Why.REFUSED]


def test_a_job_without_a_lease_needs_a_ttl() -> None:
    lease = claimed()
    execute(
        "UPDATE jobs SET lease_expires_at = NULL, claimed_at = now() - interval '1 day', "
        "last_heartbeat_at = NULL WHERE id = %s",
        lease.pk,
    )
    job = Job.objects.get(pk=lease.pk)
    assert Why.NO_LEASE in explained(job)
    with override_settings(JOBREAPER={"STAGES": {"clip": {"ttl": "10m"}}}):
        assert Why.EXPIRED in explained(job)


def test_a_table_without_leases_is_explained_too() -> None:
    job = ExecutorJob.objects.create(
        type="run_tsa", status="running", locked_by="x", locked_at=now() - timedelta(hours=1)
    )
    passed()
    found = jobreaper.explain(job)
    assert [reason.code for reason in found.reasons] == [Why.EXPIRED]
    assert "back to the queue" in found.next


def test_many_are_explained_in_the_order_of_their_keys() -> None:
    jobs = [lost(), lost(), lost()]
    keys = [job.pk for job in reversed(jobs)]
    assert [found.pk for found in explain_many(table_of(Job), [*keys, 0])] == keys


class TestAttempts:
    def attempts(self, job: Any) -> list[Attempt]:
        return jobreaper.explain(job).attempts

    def test_each_attempt_says_who_held_it_and_how_it_ended(self) -> None:
        lease = claimed("one:1:a")
        lease.fail("boom", "it broke")
        execute("UPDATE jobs SET next_earliest_run_at = now() WHERE id = %s", lease.pk)
        second = jobreaper.claim(Job, lease.pk, worker="two:1:a")
        assert second is not None
        first, last = self.attempts(Job.objects.get(pk=lease.pk))
        assert (first.number, first.worker, first.fail_code) == (1, "one:1:a", "boom")
        assert first.outcome is EventType.JOB_RETRIED
        assert (last.number, last.worker, last.ended_at) == (2, "two:1:a", None)

    def test_a_lost_attempt_says_since_when_its_worker_was_silent(self) -> None:
        job = lost()
        jobreaper.reap([Job], hold=False)
        [attempt] = self.attempts(job)
        assert attempt.was_lost
        assert attempt.began_at == job.claimed_at
        assert attempt.silent_from == job.last_heartbeat_at
        assert attempt.expired_at == job.lease_expires_at

    def test_a_dead_job_says_what_helps(self) -> None:
        job = lost(max_attempts=1)
        jobreaper.reap([Job], hold=False)
        found = jobreaper.explain(job)
        assert [reason.code for reason in found.reasons] == [Why.FAILED]
        assert "timeout" in found.headline
        assert "requeue" in found.reasons[0].remedy
        assert "– reaper:failed(timeout)" in str(found)
