"""How a job ends whose function speaks to Celery: retries, ignores, rejects, exits."""

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate
from django.test import override_settings

from jobreaper.celery import shutdown
from jobreaper.states import EventType, Status
from tests.celery.brokers import raising
from tests.celery.conftest import Run, wait_sec
from tests.rows import Rows

pytestmark = pytest.mark.usefixtures("transactional_db")


# Celery's own words


def test_retry_takes_the_countdown_in_place_of_the_backoff(run: Run, jobs: Rows) -> None:
    def work(self: Any, job: Any, lease: Any) -> None:
        self.retry(countdown=1000)

    pk = run(work, raises=Retry, bind=True)
    assert 900 < wait_sec(jobs, pk) <= 1000
    assert jobs.event_types(pk) == [EventType.JOB_RETRIED]


@pytest.mark.parametrize("zone", [UTC, None])
def test_retry_takes_an_eta_with_or_without_a_zone(zone: Any, run: Run, jobs: Rows) -> None:
    eta = (datetime.now(UTC) + timedelta(seconds=1000)).replace(tzinfo=zone)
    pk = run(raising(Retry(when=eta)), raises=Retry)
    assert 900 < wait_sec(jobs, pk) <= 1000


@pytest.mark.parametrize("when", [-5, datetime(2000, 1, 1, tzinfo=UTC)])
def test_retry_in_the_past_is_due_at_once(when: Any, run: Run, jobs: Rows) -> None:
    pk = run(raising(Retry(when=when)), raises=Retry)
    assert wait_sec(jobs, pk) <= 0


def test_retry_without_a_time_has_the_stages_backoff(run: Run, jobs: Rows) -> None:
    with override_settings(JOBREAPER={"JOB_RETRY_BACKOFF_MS_BASE": 100_000}):
        pk = run(raising(Retry()), raises=Retry)
    assert 60 < wait_sec(jobs, pk) <= 100


def test_retry_has_its_cause_on_record(run: Run, jobs: Rows) -> None:
    def work(self: Any, job: Any, lease: Any) -> None:
        try:
            raise OSError("the printer is on fire")
        except OSError as error:
            raise self.retry(exc=error, countdown=5, throw=False) from error

    pk = run(work, raises=Retry, bind=True)
    row = jobs.row(pk)
    assert (row["fail_code"], row["fail_reason"]) == ("OSError", "the printer is on fire")


def test_a_retry_without_attempts_left_fails_with_its_cause_whatever_max_retries_says(
    run: Run, jobs: Rows
) -> None:
    def work(self: Any, job: Any, lease: Any) -> None:
        self.retry(exc=OSError("the printer is on fire"), max_retries=99)

    pk = run(work, raises=OSError, bind=True, max_attempts=1)
    assert jobs.row(pk)["status"] == Status.FAILED
    assert jobs.event_types(pk) == [EventType.JOB_FAILED]


def test_ignore_cancels_the_job(run: Run, jobs: Rows) -> None:
    pk = run(raising(Ignore()), raises=Ignore)
    assert jobs.row(pk)["status"] == Status.CANCELLED
    assert jobs.event_types(pk) == [EventType.JOB_CANCELLED]


@pytest.mark.parametrize(
    ("requeue", "status", "event"),
    [
        (True, Status.QUEUED, EventType.JOB_RETRIED),
        (False, Status.FAILED, EventType.JOB_FAILED),
    ],
)
def test_reject_gives_the_job_back_or_fails_it(
    requeue: bool, status: str, event: str, run: Run, jobs: Rows
) -> None:
    pk = run(raising(Reject("bad address", requeue=requeue)), raises=Reject)
    row = jobs.row(pk)
    assert (row["status"], row["fail_code"], row["fail_reason"]) == (
        status,
        "Reject",
        "bad address",
    )
    assert jobs.event_types(pk) == [event]


class Rejection(Reject):
    """One that never calls what it is made of."""

    def __init__(self, why: str) -> None:
        self.args = (why,)


@pytest.mark.parametrize(
    "error",
    [
        Retry("soon", when="tomorrow"),  # type: ignore[arg-type]
        Retry("soon", when=timedelta(hours=1)),  # type: ignore[arg-type]
        Rejection("bad address"),
    ],
    ids=["time in words", "time as a span", "nothing but args"],
)
def test_words_of_celerys_that_cannot_be_made_out_fail_the_attempt_like_any_exception(
    error: Exception, run: Run, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(JOBREAPER={"STAGES": {"mail": {"backoff": [100]}}}):
        pk = run(raising(error), raises=type(error))
    row = jobs.row(pk)
    assert (row["status"], row["fail_code"]) == (Status.QUEUED, type(error).__name__)
    assert 60 < wait_sec(jobs, pk) <= 100
    assert f"jobreaper_jobs {pk} was not ended by " in caplog.text


def test_a_reject_of_ones_own_making_is_a_reject(run: Run, jobs: Rows) -> None:
    class Refusal(Reject):
        def __init__(self) -> None:
            super().__init__("bad address")
            self.args = ("bad address",)

    pk = run(raising(Refusal()), raises=Refusal)
    row = jobs.row(pk)
    assert (row["status"], row["fail_reason"]) == (Status.FAILED, "bad address")


class Bare(BaseException):
    """Something that only a bare ``except`` catches."""


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Bare("all")], ids=repr)
def test_a_function_that_exits_has_failed_and_takes_no_worker_with_it(
    error: BaseException, run: Run, jobs: Rows
) -> None:
    pk = run(raising(error), raises=RuntimeError)
    assert jobs.row(pk)["fail_code"] == type(error).__name__
    assert jobs.event_types(pk) == [EventType.JOB_RETRIED]


def test_a_function_that_exits_for_ever_ends_at_its_cap(run: Run, jobs: Rows) -> None:
    pk = run(lambda job, lease: sys.exit(), raises=RuntimeError, max_attempts=1)
    assert jobs.row(pk)["status"] == Status.FAILED


@pytest.fixture
def _shutting_down() -> Any:
    shutdown.begin()
    yield
    shutdown.reset()


@pytest.mark.parametrize("error", [WorkerShutdown(0), WorkerTerminate(1)], ids=repr)
@pytest.mark.usefixtures("_shutting_down")
def test_a_worker_that_is_told_to_stop_gives_the_job_back_with_its_attempt(
    error: BaseException, run: Run, jobs: Rows
) -> None:
    pk = run(raising(error), raises=type(error))
    row = jobs.row(pk)
    assert (row["status"], row["attempt_count"], row["reap_count"]) == (Status.QUEUED, 0, 0)
    assert jobs.event_types(pk) == [EventType.JOB_RELEASED]


def test_a_process_that_is_stopped_alone_leaves_the_job_to_its_parent(run: Run, jobs: Rows) -> None:
    """It may be for what the job does: to release it would let it run for ever."""
    pk = run(raising(WorkerTerminate(1)), raises=WorkerTerminate)
    assert jobs.row(pk)["status"] == Status.PROCESSING
    assert jobs.event_types(pk) == []
