"""What a job's function reports, and jobs whose worker beats without getting anywhere."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

import jobreaper
from jobreaper import BadProgress, Lease, LeaseClosed, LeaseLost, claim, enqueue
from jobreaper.models import Job, JobEvent
from jobreaper.progress import LARGEST_NUMBER, LONGEST_NOTE
from jobreaper.protocol import heartbeat
from jobreaper.protocol.holding import holding_of
from jobreaper.protocol.renewing import beat
from jobreaper.states import FailCode, Reason
from jobreaper.tables import table_of
from project.media.models import Job as MediaJob
from tests.rows import Sql

pytestmark = pytest.mark.usefixtures("transactional_db")

STALL_AFTER_SEC = 600


@pytest.fixture(autouse=True)
def _stages(settings: Any) -> None:
    settings.JOBREAPER = {
        "STAGES": {
            "scan": {"stall_after": STALL_AFTER_SEC},
            "strict": {"stall_after": STALL_AFTER_SEC, "on_expiry": "fail"},
            "counted": {"stall_after": STALL_AFTER_SEC, "max_reaps": 1},
        }
    }


def claimed(stage: str = "scan", **fields: Any) -> Lease:
    lease = claim(Job, enqueue("scan", stage=stage, **fields).pk)
    assert lease is not None
    return lease


def stored(lease: Lease) -> Any:
    return Job.objects.get(pk=lease.pk).progress


def row() -> Any:
    return Job.objects.get()


def time_passes(lease: Lease, seconds: float, seen_ago: float = 1) -> None:
    """Let the stall clock of an attempt run, as if its worker had gone on with its heartbeats."""
    ago = timedelta(seconds=seconds)
    job: Any = Job.objects.get(pk=lease.pk)
    Job.objects.filter(pk=lease.pk).update(
        claimed_at=job.claimed_at - ago,
        progress_at=job.progress_at and job.progress_at - ago,
        stalls_at=job.stalls_at and job.stalls_at - ago,
        last_heartbeat_at=job.last_heartbeat_at - timedelta(seconds=seen_ago),
    )


def reaped(lease: Lease) -> dict[str, Any]:
    """Reap, and return what was said of the job."""
    jobreaper.reap([Job], hold=False)
    event = JobEvent.objects.filter(job_id=str(lease.pk)).latest("id")
    return {"type": event.type, **event.details}


def test_the_next_heartbeat_carries_the_last_report_and_nothing_else_is_sent(
    django_assert_num_queries: Any,
) -> None:
    lease = claimed()
    with django_assert_num_queries(0):
        for done in range(1000):
            lease.progress(done, 1000, f"page {done}")
    assert stored(lease) is None
    with django_assert_num_queries(1):
        lease.heartbeat()
    assert stored(lease) == {"done": 999, "total": 1000, "note": "page 999"}
    with django_assert_num_queries(1) as sent:
        lease.heartbeat()
    assert "by_job" not in sent.captured_queries[0]["sql"]


def test_leases_without_a_report_keep_what_they_have() -> None:
    leases = [claimed() for _ in range(3)]
    leases[0].progress(1)
    leases[1].progress(2, note="ä'\"\\")
    holdings = [holding_of(lease) for lease in leases]
    beat(connection, table_of(Job), holdings)
    leases[1].progress(0.5, 0)
    beat(connection, table_of(Job), holdings)
    assert [stored(lease) for lease in leases] == [{"done": 1}, {"done": 0.5, "total": 0}, None]


def test_a_report_goes_with_the_end_of_the_attempt_if_no_heartbeat_has_carried_it() -> None:
    done, failed, reported_long_ago = claimed(), claimed(), claimed()
    reported_long_ago.progress(1)
    reported_long_ago.heartbeat()
    done.progress(7, 7)
    done.finish()
    failed.progress(3, 7)
    failed.fail("oops")
    reported_long_ago.release()
    assert [stored(lease) for lease in (done, failed, reported_long_ago)] == [
        {"done": 7, "total": 7},
        {"done": 3, "total": 7},
        {"done": 1},
    ]
    with pytest.raises(LeaseClosed):
        done.progress(8)


def test_a_report_stays_until_the_row_is_not_locked_any_more(sql: Sql) -> None:
    lease = claimed()
    lease.progress(1)
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=lease.pk)
        other = connection.copy()
        try:
            beat(other, table_of(Job), [holding_of(lease)])
        finally:
            other.close()
    lease.heartbeat()
    assert stored(lease) == {"done": 1}


BAD = [
    (-1, None, None),
    (float("nan"), None, None),
    (float("inf"), None, None),
    (1, -1, None),
    (1, float("nan"), None),
    (LARGEST_NUMBER + 1, None, None),
    (10**400, None, None),
    ("1", None, None),
    (True, None, None),
    (None, 1, None),
    (1, None, b"bytes"),
]


def test_what_is_no_progress_is_refused_in_words_and_changes_nothing() -> None:
    lease = claimed()
    lease.progress(5, 4, "x" * 1000)
    for done, total, note in BAD:
        with pytest.raises(BadProgress, match=r"(done|total|note) must"):
            lease.progress(done, total, note)  # type: ignore[arg-type]
    lease.heartbeat()
    assert stored(lease) == {"done": 5, "total": 4, "note": "x" * LONGEST_NOTE}
    lease.progress(6, note="\x00\ud83e" * 1000)
    lease.heartbeat()
    assert len(stored(lease)["note"]) <= LONGEST_NOTE


def test_a_stale_worker_reports_nothing() -> None:
    lease = claimed()
    lease.progress(1)
    holding = holding_of(lease)
    jobreaper.requeue(Job, [lease.pk], by="ann")
    again = claim(Job, lease.pk)
    assert again is not None
    # Both in one statement, as in a process that has claimed the job once more.
    again.progress(2)
    beat(connection, table_of(Job), [holding, holding_of(again)])
    assert stored(lease) == {"done": 2}
    with pytest.raises(LeaseLost):
        lease.progress(3)
    assert holding.report is not None
    beat(connection, table_of(Job), [holding])
    assert stored(lease) == {"done": 2}


def test_a_table_without_the_fields_is_leased_as_ever_and_takes_no_report() -> None:
    lease = claim(MediaJob, MediaJob.objects.create(stage="scan").pk)
    assert lease is not None
    assert lease.expires_at == lease.job.claimed_at + timedelta(seconds=300)
    with pytest.raises(BadProgress, match="jobs does not have the fields progress, progress_at"):
        lease.progress(1)
    lease.heartbeat()
    lease.finish()
    assert MediaJob.objects.get().status == "success"


# Stalled jobs.


def test_a_heartbeat_alone_does_not_keep_a_job_that_gets_nowhere() -> None:
    lease = claimed()
    time_passes(lease, STALL_AFTER_SEC + 1)
    holding = holding_of(lease)
    beat(connection, table_of(Job), [holding])
    assert lease.expires_at == row().stalls_at
    assert holding.is_lost()
    assert "no progress for the stall_after" in str(holding.loss)
    said = reaped(lease)
    assert (said["type"], said["reason"]) == ("reaper:requeued", Reason.STALLED)
    assert (said["progress"], said["attempt"]) == (None, 1)
    assert row().stalls_at is None


def test_a_report_keeps_it_unless_it_says_the_same_as_the_last_one() -> None:
    lease = claimed()
    lease.progress(1, 2)
    lease.heartbeat()
    time_passes(lease, STALL_AFTER_SEC - 10)
    lease.progress(1, 2)
    beat(connection, table_of(Job), [holding_of(lease)])
    job = row()
    assert lease.expires_at == job.stalls_at < job.last_heartbeat_at + timedelta(seconds=11)
    lease.progress(2, 2)
    beat(connection, table_of(Job), [holding_of(lease)])
    job = row()
    assert job.stalls_at == job.progress_at + timedelta(seconds=STALL_AFTER_SEC)
    assert job.lease_expires_at >= job.last_heartbeat_at + timedelta(seconds=300)


ENDS = [
    ("scan", {"max_attempts": 1}, "reaper:failed(stalled)", "failed", 1),
    ("strict", {}, "reaper:failed(stalled)", "failed", 1),
    # Its worker was not lost.
    ("counted", {}, "reaper:requeued", "queued", 1),
    ("counted", {"max_attempts": 1}, "reaper:failed(stalled)", "failed", 1),
]


def test_the_policy_of_the_stage_says_what_becomes_of_it() -> None:
    for stage, fields, event, status, attempts in ENDS:
        lease = claimed(stage, **fields)
        lease.progress(3, 10, "page 3")
        lease.heartbeat()
        time_passes(lease, STALL_AFTER_SEC + 1)
        beat(connection, table_of(Job), [holding_of(lease)])
        said = reaped(lease)
        job = Job.objects.get(pk=lease.pk)
        assert (said["type"], said["reason"]) == (event, "stalled")
        assert (job.status, job.attempt_count, job.reap_count) == (status, attempts, 1)
        assert job.fail_code == (FailCode.STALLED if status == "failed" else None)
        assert said["progress"] == job.progress == {"done": 3, "total": 10, "note": "page 3"}
        assert said["progress_at"]


def test_a_silent_worker_is_lost_whatever_it_has_reported() -> None:
    lease = claimed("counted")
    time_passes(lease, STALL_AFTER_SEC + 1, seen_ago=STALL_AFTER_SEC - 200)
    Job.objects.update(lease_expires_at=row().stalls_at)
    said = reaped(lease)
    assert (said["type"], said["reason"]) == ("reaper:failed(poison)", "lease_expired")


def test_progress_does_not_survive_into_the_next_attempt() -> None:
    lease = claimed()
    lease.progress(9, 10)
    lease.heartbeat()
    time_passes(lease, STALL_AFTER_SEC - 1)
    lease.release()
    again = claim(Job, lease.pk)
    assert again is not None
    job = row()
    assert (job.progress, job.progress_at) == (None, None)
    assert job.stalls_at == job.claimed_at + timedelta(seconds=STALL_AFTER_SEC)


def test_an_instance_that_is_saved_does_not_undo_a_report() -> None:
    lease = claimed()
    lease.progress(1)
    lease.heartbeat()
    lease.job.payload = {"changed": True}
    lease.job.save()
    assert (stored(lease), Job.objects.get().payload) == ({"done": 1}, {"changed": True})


def test_just_before_the_job_has_stalled_a_report_does_not_wait_for_the_next_heartbeat(
    settings: Any, sql: Sql
) -> None:
    """Otherwise, a job that got on in time would be taken back."""
    settings.JOBREAPER = {**settings.JOBREAPER, "HEARTBEAT_SEC": 100}
    lease = claimed(max_attempts=1)
    holding = holding_of(lease)
    with lease:
        soon = heartbeat.heart._next_beat
        lease.progress(1)
        assert heartbeat.heart._next_beat == soon
        beat(connection, table_of(Job), [holding])
        Job.objects.update(stalls_at=lease.job.claimed_at + timedelta(seconds=90))
        beat(connection, table_of(Job), [holding])
        lease.progress(2)
        assert heartbeat.heart._next_beat < soon - 30
