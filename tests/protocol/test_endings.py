"""Finish, fail and release: exactly what is written, and what is not."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from jobreaper import Lease, LeaseClosed, LeaseLost, claim
from project.media.models import Job
from tests.rows import Rows, Sql, ago, ahead

UNLOCKED = {
    "locked_by": None,
    "claimed_at": None,
    "lease_expires_at": None,
    "deadline_at": None,
    "dispatched_at": None,
}

ENDINGS: dict[str, Callable[[Lease], object]] = {
    "finish": lambda lease: lease.finish(),
    "fail": lambda lease: lease.fail("E1"),
    "release": lambda lease: lease.release(),
}


def claimed(jobs: Rows, worker: str = "w1", **columns: Any) -> Lease:
    lease = claim(Job, jobs.plant(**columns), worker=worker)
    assert lease is not None
    return lease


def take_away(jobs: Rows, lease: Lease) -> None:
    """Let another worker have the job, as after a reap."""
    jobs.set(lease.pk, lease_epoch=lease.epoch + 2, locked_by="w2")


def test_a_finish_writes_success_and_clears_the_lease(jobs: Rows) -> None:
    lease = claimed(
        jobs, fail_code="E1", fail_reason="before", next_earliest_run_at=ago(9), reap_count=1
    )
    jobs.set(lease.pk, dispatched_at=ago(2))
    before = jobs.row(lease.pk)
    lease.finish()
    row = jobs.row(lease.pk)
    assert row["finished_at"] >= before["claimed_at"]
    assert row == {
        **before,
        **UNLOCKED,
        "status": "success",
        "finished_at": row["finished_at"],
        "fail_code": None,
        "fail_reason": None,
    }


def test_a_finish_leaves_one_event_with_who_and_how_long(jobs: Rows) -> None:
    lease = claimed(jobs, stage="clip", attempt_count=1)
    jobs.set(lease.pk, claimed_at=ago(90))
    before = jobs.row(lease.pk)
    lease.finish()
    [event] = jobs.events(lease.pk)
    duration_ms = event["details"].pop("duration_ms")
    assert 90_000 <= duration_ms < 150_000
    assert event == {
        "type": "job:finished",
        "table": "jobs",
        "details": {
            "locked_by": "w1",
            "stage": "clip",
            "attempt": 2,
            "epoch": 1,
            "claimed_at": iso(before["claimed_at"]),
            "queue_wait_ms": None,
        },
        "at": iso(jobs.row(lease.pk)["finished_at"]),
    }


def iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_a_failed_attempt_goes_back_with_its_backoff(jobs: Rows) -> None:
    lease = claimed(jobs, attempt_count=1)
    before = jobs.row(lease.pk)
    assert lease.fail("E1", "went wrong")
    row = jobs.row(lease.pk)
    run_at = row["next_earliest_run_at"]
    assert row == {
        **before,
        **UNLOCKED,
        "status": "queued",
        "next_earliest_run_at": run_at,
        "fail_code": "E1",
        "fail_reason": "went wrong",
    }
    [event] = jobs.events(lease.pk)
    assert run_at - datetime.fromisoformat(event["at"]) == timedelta(minutes=2)
    assert event["type"] == "job:retried"
    assert set(event) == {"type", "table", "details", "at"}
    assert set(event["details"]) == {
        "locked_by",
        "stage",
        "attempt",
        "epoch",
        "claimed_at",
        "queue_wait_ms",
        "duration_ms",
        "fail_code",
        "fail_reason",
        "exception",
        "traceback",
        "next_earliest_run_at",
    }
    assert event["details"]["attempt"] == 2
    assert event["details"]["fail_code"] == "E1"
    assert event["details"]["fail_reason"] == "went wrong"
    assert event["details"]["next_earliest_run_at"] == iso(run_at)


@pytest.mark.parametrize(
    ("attempts_before", "retry"),
    [
        pytest.param(2, True, id="no attempt left"),
        pytest.param(0, False, id="not to be retried"),
    ],
)
def test_a_failure_for_good_is_terminal(jobs: Rows, attempts_before: int, retry: bool) -> None:
    lease = claimed(jobs, attempt_count=attempts_before, next_earliest_run_at=ago(9))
    before = jobs.row(lease.pk)
    assert not lease.fail("E1", "went wrong", retry=retry)
    row = jobs.row(lease.pk)
    assert row == {
        **before,
        **UNLOCKED,
        "status": "failed",
        "finished_at": row["finished_at"],
        "fail_code": "E1",
        "fail_reason": "went wrong",
    }
    assert row["finished_at"] is not None
    [event] = jobs.events(lease.pk)
    assert event["type"] == "job:failed"
    assert event["details"]["next_earliest_run_at"] is None


def test_the_rows_own_limit_of_attempts_wins(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"JOB_MAX_ATTEMPTS": 1}
    lease = claimed(jobs, max_attempts=2)
    assert lease.fail("E1")
    assert jobs.row(lease.pk)["status"] == "queued"


def test_the_stage_decides_how_long_a_failed_attempt_waits(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"backoff": ["1h", "2h"]}}}
    lease = claimed(jobs, stage="asr", attempt_count=1)
    lease.fail("E1")
    [event] = jobs.events(lease.pk)
    waits = jobs.row(lease.pk)["next_earliest_run_at"] - datetime.fromisoformat(event["at"])
    assert waits == timedelta(hours=2)


@pytest.mark.parametrize(
    ("delay_sec", "expected"),
    [
        (0, timedelta(0)),
        (0.5, timedelta(seconds=0.5)),
        (7200, timedelta(hours=2)),
        (-5, timedelta(0)),
        (float("nan"), timedelta(0)),
        (2.0**60, timedelta(days=366)),
        (float("inf"), timedelta(days=366)),
    ],
)
def test_a_delay_takes_the_place_of_the_backoff(
    jobs: Rows, delay_sec: float, expected: timedelta
) -> None:
    lease = claimed(jobs)
    lease.fail("E1", delay_sec=delay_sec)
    [event] = jobs.events(lease.pk)
    waits = jobs.row(lease.pk)["next_earliest_run_at"] - datetime.fromisoformat(event["at"])
    assert waits == expected


def test_an_exception_gives_its_class_and_message(jobs: Rows) -> None:
    lease = claimed(jobs)
    lease.fail(ZeroDivisionError("by naught"))
    row = jobs.row(lease.pk)
    assert (row["fail_code"], row["fail_reason"]) == ("ZeroDivisionError", "by naught")


def test_a_reason_given_beside_an_exception_wins(jobs: Rows) -> None:
    lease = claimed(jobs)
    lease.fail(ValueError("private"), "for everybody's eyes")
    assert jobs.row(lease.pk)["fail_reason"] == "for everybody's eyes"


def test_a_code_alone_leaves_no_reason(jobs: Rows) -> None:
    lease = claimed(jobs, fail_reason="before")
    lease.fail("E1")
    assert jobs.row(lease.pk)["fail_reason"] is None


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("a\x00b", "a\\x00b"),
        ("\udfff", "\\udfff"),
        ("%s %(id)s {id}", "%s %(id)s {id}"),
        ("'; DROP TABLE jobs; --", "'; DROP TABLE jobs; --"),
    ],
)
def test_whatever_text_a_failure_has_it_is_stored(jobs: Rows, text: str, stored: str) -> None:
    lease = claimed(jobs)
    lease.fail(text, text)
    row = jobs.row(lease.pk)
    assert (row["fail_code"], row["fail_reason"]) == (stored, stored)
    details = jobs.events(lease.pk)[0]["details"]
    assert (details["fail_code"], details["fail_reason"]) == (stored, stored)


def test_megabytes_of_text_are_cut(jobs: Rows) -> None:
    lease = claimed(jobs)
    lease.fail("c" * 5_000_000, "r" * 5_000_000)
    row = jobs.row(lease.pk)
    assert row["fail_code"] == "c" * 200
    assert row["fail_reason"] == "r" * 10_000 + "... (4990000 characters cut)"


def test_a_release_gives_the_attempt_back(jobs: Rows) -> None:
    lease = claimed(jobs, attempt_count=1, next_earliest_run_at=ago(9), fail_code="E1")
    before = jobs.row(lease.pk)
    lease.release()
    assert jobs.row(lease.pk) == {**before, **UNLOCKED, "status": "queued", "attempt_count": 1}
    [event] = jobs.events(lease.pk)
    assert event["type"] == "job:released"
    assert event["details"]["attempt"] == 2
    assert claim(Job, lease.pk)


@pytest.mark.parametrize("verb", ENDINGS)
def test_the_last_heartbeat_is_kept_as_evidence(jobs: Rows, verb: str) -> None:
    lease = claimed(jobs)
    beat = jobs.row(lease.pk)["last_heartbeat_at"]
    ENDINGS[verb](lease)
    assert jobs.row(lease.pk)["last_heartbeat_at"] == beat


@pytest.mark.parametrize("verb", ENDINGS)
def test_other_rows_are_left_alone(jobs: Rows, verb: str) -> None:
    others = [jobs.plant_running(), jobs.plant_expired(), jobs.plant(status="success")]
    before = {key: jobs.row(key) for key in others}
    ENDINGS[verb](claimed(jobs))
    assert {key: jobs.row(key) for key in others} == before


@pytest.mark.parametrize("verb", ENDINGS)
def test_an_ending_is_one_statement(jobs: Rows, verb: str, django_assert_num_queries: Any) -> None:
    lease = claimed(jobs)
    with django_assert_num_queries(1):
        ENDINGS[verb](lease)


@pytest.mark.parametrize("again", [*ENDINGS, "heartbeat"])
@pytest.mark.parametrize("verb", ENDINGS)
def test_what_a_worker_has_ended_it_cannot_end_again(jobs: Rows, verb: str, again: str) -> None:
    lease = claimed(jobs)
    ENDINGS[verb](lease)
    assert lease.closed
    before = jobs.row(lease.pk)
    with pytest.raises(LeaseClosed, match=f"cannot {again} "):
        (ENDINGS.get(again) or Lease.heartbeat)(lease)
    assert jobs.row(lease.pk) == before
    assert len(jobs.events(lease.pk)) == 1
    assert not lease.lost


# Rejected writes.


def test_a_rejected_write_is_on_record_with_what_the_row_says(jobs: Rows) -> None:
    lease = claimed(jobs, stage="clip")
    take_away(jobs, lease)
    with pytest.raises(LeaseLost) as caught:
        lease.finish()
    [event] = jobs.events(lease.pk)
    assert event == {
        "type": "job:stale_write_rejected",
        "table": "jobs",
        "details": {
            "verb": "finish",
            "locked_by": "w1",
            "stage": "clip",
            "attempt": 1,
            "epoch": 1,
            "present_status": "processing",
            "present_epoch": 3,
            "present_locked_by": "w2",
        },
        "at": event["at"],
    }
    error = caught.value
    assert (error.table, error.pk, error.status, error.epoch) == ("jobs", lease.pk, "processing", 3)
    assert str(error) == (
        f"lost the lease of jobs {lease.pk} at epoch 1: finish was rejected; "
        "the job is now processing at epoch 3"
    )
    assert lease.lost


def test_a_lease_of_a_deleted_job_is_lost(jobs: Rows, sql: Sql) -> None:
    lease = claimed(jobs)
    sql("DELETE FROM jobs")
    with pytest.raises(LeaseLost) as caught:
        lease.finish()
    assert (caught.value.status, caught.value.epoch) == (None, None)
    [event] = jobs.events(lease.pk)
    assert event["details"]["present_status"] is None


def test_every_rejected_write_leaves_an_event_of_its_own(jobs: Rows) -> None:
    lease = claimed(jobs)
    take_away(jobs, lease)
    for verb in ("finish", "fail", "release", "finish"):
        with pytest.raises(LeaseLost):
            ENDINGS[verb](lease)
    verbs = [event["details"]["verb"] for event in jobs.events(lease.pk)]
    assert verbs == ["finish", "fail", "release", "finish"]


def test_the_same_epoch_of_a_job_that_is_not_running_is_no_lease(jobs: Rows) -> None:
    lease = claimed(jobs)
    jobs.set(lease.pk, status="success")
    with pytest.raises(LeaseLost):
        lease.fail("E1")
    assert jobs.row(lease.pk)["status"] == "success"


def test_a_release_of_a_job_that_was_never_counted_does_not_count_below_nothing(
    jobs: Rows,
) -> None:
    lease = claimed(jobs)
    jobs.set(lease.pk, attempt_count=0)
    lease.release()
    assert jobs.row(lease.pk)["attempt_count"] == 0


def test_a_scheduled_time_that_is_still_ahead_is_kept_by_a_release(jobs: Rows) -> None:
    lease = claimed(jobs)
    jobs.set(lease.pk, next_earliest_run_at=ahead(100))
    lease.release()
    assert claim(Job, lease.pk) is None
