"""Every state a row can be in, as a foreign client plants it, and what a pass makes of it: exactly
the columns, exactly the event.
"""

from datetime import datetime, timedelta

import pytest
from pytest_django import Settings

from jobreaper import claim, worker_id
from jobreaper.states import Status
from project.media.models import Job
from tests.reaper.passes import assert_left_alone, requeued_and_failed, waits
from tests.rows import Rows, Sql, ago, ahead

UNLOCKED = {
    "locked_by": None,
    "claimed_at": None,
    "lease_expires_at": None,
    "deadline_at": None,
    "dispatched_at": None,
}


# A lease that ran out.


def test_an_expired_job_with_attempts_left_is_requeued(jobs: Rows) -> None:
    key = jobs.plant_expired(
        stage="dub",
        attempt_count=2,
        lease_epoch=5,
        reap_count=1,
        fail_code="E1",
        fail_reason="an earlier attempt's",
        dispatched_at=ago(400),
        deadline_at=ahead(400),
        expected_duration_ms=1000,
        payload='{"keep": "me"}',
    )
    before = jobs.row(key)
    assert requeued_and_failed(jobs) == ([key], [])
    assert jobs.row(key) == {
        **before,
        **UNLOCKED,
        "status": "queued",
        "lease_epoch": 6,
        "reap_count": 2,
        "next_earliest_run_at": jobs.row(key)["next_earliest_run_at"],
    }
    assert waits(jobs, key) == timedelta(minutes=2)


def test_an_expired_job_with_no_attempt_left_is_failed(jobs: Rows) -> None:
    key = jobs.plant_expired(
        attempt_count=3,
        lease_epoch=5,
        fail_code="E1",
        fail_reason="an earlier attempt's",
        next_earliest_run_at=ago(900),
        dispatched_at=ago(400),
    )
    before = jobs.row(key)
    assert requeued_and_failed(jobs) == ([], [key])
    row = jobs.row(key)
    assert row == {
        **before,
        **UNLOCKED,
        "status": "failed",
        "lease_epoch": 6,
        "reap_count": 1,
        "finished_at": row["finished_at"],
        "fail_code": "timeout",
        "fail_reason": "lease_expired",
    }
    assert timedelta() <= jobs.now() - row["finished_at"] < timedelta(seconds=60)


def test_the_event_of_a_requeue(jobs: Rows) -> None:
    key = jobs.plant_expired(stage="clip", attempt_count=2, lease_epoch=5)
    row = jobs.row(key)
    requeued_and_failed(jobs)
    [event] = jobs.events(key)
    overdue_ms = event["details"].pop("overdue_ms")
    assert 41_000 <= overdue_ms < 101_000
    assert event == {
        "type": "reaper:requeued",
        "table": "jobs",
        "details": {
            "reason": "lease_expired",
            "locked_by": "elsewhere:7:0badf00d",
            "stage": "clip",
            "attempt": 2,
            # The epoch of the lease that was lost.
            "epoch": 5,
            "claimed_at": iso(row["claimed_at"]),
            "last_heartbeat_at": iso(row["last_heartbeat_at"]),
            "lease_expires_at": iso(row["lease_expires_at"]),
            "reaper": worker_id(),
            "next_earliest_run_at": iso(jobs.row(key)["next_earliest_run_at"]),
        },
        "at": event["at"],
    }


def test_the_event_of_a_failure(jobs: Rows) -> None:
    key = jobs.plant_expired(attempt_count=3)
    requeued_and_failed(jobs)
    [event] = jobs.events(key)
    assert event["type"] == "reaper:failed(timeout)"
    assert set(event) == {"type", "table", "details", "at"}
    assert set(event["details"]) == {
        "reason",
        "locked_by",
        "stage",
        "attempt",
        "epoch",
        "claimed_at",
        "last_heartbeat_at",
        "lease_expires_at",
        "overdue_ms",
        "reaper",
        "next_earliest_run_at",
    }
    assert event["details"]["stage"] is None
    assert event["details"]["next_earliest_run_at"] is None
    assert event["at"] == iso(jobs.row(key)["finished_at"])


def test_the_rows_of_the_event_table_are_generated_from_its_data(jobs: Rows, sql: Sql) -> None:
    key = jobs.plant_expired()
    requeued_and_failed(jobs)
    [row] = sql("TABLE job_events")
    assert (row["type"], row["table"], row["job_id"]) == ("reaper:requeued", "jobs", str(key))
    assert jobs.now() - row["at"] < timedelta(seconds=60)


def iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.parametrize(
    ("attempts", "minutes"), [(0, 0.5), (1, 0.5), (2, 2), (3, 10), (4, 10), (9, 10)]
)
def test_the_backoff_grows_with_the_attempts(jobs: Rows, attempts: int, minutes: float) -> None:
    key = jobs.plant_expired(attempt_count=attempts, max_attempts=99)
    requeued_and_failed(jobs)
    assert waits(jobs, key) == timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("attempts", "max_attempts", "status"),
    [(0, 1, "queued"), (1, 1, "failed"), (2, 1, "failed"), (4, 5, "queued"), (5, 5, "failed")],
)
def test_the_rows_own_number_of_attempts_decides(
    jobs: Rows, settings: Settings, attempts: int, max_attempts: int, status: str
) -> None:
    settings.JOBREAPER = {"JOB_MAX_ATTEMPTS": 3}
    key = jobs.plant_expired(attempt_count=attempts, max_attempts=max_attempts)
    requeued_and_failed(jobs)
    row = jobs.row(key)
    assert row["status"] == status
    assert (row["attempt_count"], row["max_attempts"]) == (attempts, max_attempts)


def test_a_row_as_an_old_insert_makes_it_has_three_attempts(jobs: Rows) -> None:
    key = jobs.plant_expired(attempt_count=2)
    assert requeued_and_failed(jobs) == ([key], [])
    assert jobs.row(key)["max_attempts"] == 3


def test_the_second_pass_finds_nothing(jobs: Rows) -> None:
    keys = [jobs.plant_expired(), jobs.plant_expired(attempt_count=3)]
    requeued_and_failed(jobs)
    after = jobs.all()
    assert requeued_and_failed(jobs) == ([], [])
    assert jobs.all() == after
    assert [len(jobs.events(key)) for key in keys] == [1, 1]


def test_the_job_row_alone_is_enough(jobs: Rows) -> None:
    # No worker's row to join with, no task class to look up, no stage known to the settings.
    key = jobs.plant(status="processing", lease_expires_at=ago(1), stage="written in cobol")
    assert requeued_and_failed(jobs) == ([key], [])
    event = jobs.events(key)[0]
    assert event["details"]["locked_by"] is None


def test_a_lease_from_a_restored_backup_is_reaped(jobs: Rows) -> None:
    key = jobs.plant_expired(lease_expires_at=ago(400 * 86_400), claimed_at=ago(401 * 86_400))
    assert requeued_and_failed(jobs) == ([key], [])


@pytest.mark.parametrize("lease_expires_at", ["-infinity", "0001-01-01 00:00Z"])
def test_a_lease_that_ended_before_all_time_is_reaped(jobs: Rows, lease_expires_at: str) -> None:
    key, other = jobs.plant_expired(lease_expires_at=lease_expires_at), jobs.plant_expired()
    assert requeued_and_failed(jobs) == ([key, other], [])


def test_a_lease_without_end_is_left_alone(jobs: Rows, sql: Sql) -> None:
    jobs.plant_running(lease_expires_at="infinity")
    assert requeued_and_failed(jobs) == ([], [])


# Rows a pass must not touch.


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.PROCESSING] + ["paused"])
def test_a_job_that_is_not_running_is_left_alone(jobs: Rows, status: str) -> None:
    # With everything an expired one has, as an old worker may leave it.
    key = jobs.plant_expired(status=status, attempt_count=3, finished_at=ago(30))
    assert_left_alone(jobs, key)


@pytest.mark.parametrize("attempt_count", [1, 3])
def test_a_live_lease_is_left_alone(jobs: Rows, attempt_count: int) -> None:
    # However long it has been running, and however long ago the last beat was.
    key = jobs.plant_running(
        claimed_at=ago(86_400 * 30),
        last_heartbeat_at=ago(86_400),
        lease_expires_at=ahead(5),
        attempt_count=attempt_count,
    )
    assert_left_alone(jobs, key)


def test_only_the_running_one_of_two_jobs_alike_is_reaped(jobs: Rows) -> None:
    alike = {"stage": "clip", "payload": '{"task": "the same"}'}
    done = jobs.plant_expired(status="success", finished_at=ago(50), **alike)
    running = jobs.plant_expired(**alike)
    before = jobs.row(done)
    assert requeued_and_failed(jobs) == ([running], [])
    assert jobs.row(done) == before


def test_a_row_old_and_queued_with_nothing_else_is_left_to_the_workers(jobs: Rows) -> None:
    key = jobs.plant(created_at=ago(86_400 * 365))
    assert_left_alone(jobs, key)
    assert claim(Job, key)


# A time to run that is ahead.


def test_an_expired_job_whose_time_is_ahead_is_left_alone(jobs: Rows) -> None:
    key = jobs.plant_expired(next_earliest_run_at=ahead(60))
    assert_left_alone(jobs, key)


def test_an_expired_job_whose_time_has_come_is_reaped(jobs: Rows) -> None:
    key = jobs.plant_expired(next_earliest_run_at=ago(1))
    assert requeued_and_failed(jobs) == ([key], [])


@pytest.mark.parametrize("attempt_count", [3, 4])
def test_an_exhausted_job_is_failed_though_its_time_is_ahead(
    jobs: Rows, attempt_count: int
) -> None:
    key = jobs.plant_expired(next_earliest_run_at=ahead(60), attempt_count=attempt_count)
    before = jobs.row(key)
    assert requeued_and_failed(jobs) == ([], [key])
    assert jobs.row(key)["next_earliest_run_at"] == before["next_earliest_run_at"]
