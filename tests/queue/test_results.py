"""What handlers return, and the exceptions that they raise, as the worker stores them."""

import logging
from typing import Any

import pytest

from jobreaper import enqueue, enqueue_many, job_handler
from jobreaper.models import Job, JobEvent
from jobreaper.queue.runs import Tally, run_due
from tests.queue.working import once

pytestmark = pytest.mark.usefixtures("transactional_db")


def results() -> dict[int, Any]:
    return {job.payload["n"]: job.result for job in Job.objects.all()}


@pytest.mark.parametrize("kind", ["thread", "loop", "tick"])
def test_what_a_handler_returns_is_stored(kind: str) -> None:
    def square(job: Any, lease: Any) -> int | None:
        return job.payload["n"] ** 2 or None

    async def asquare(job: Any, lease: Any) -> int | None:
        return square(job, lease)

    job_handler("square")(asquare if kind == "loop" else square)
    enqueue_many(({"payload": {"n": n}} for n in range(5)), type="square")
    tally = run_due(10, 20) if kind == "tick" else once()
    assert tally == Tally(claimed=5, succeeded=5)
    assert results() == {0: None, 1: 1, 2: 4, 3: 9, 4: 16}


def test_what_cannot_be_stored_is_logged_and_the_job_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job_handler("odd")(lambda job, lease: object())
    job = enqueue("odd")
    assert once() == Tally(claimed=1, succeeded=1)
    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert str(job.pk) in record.getMessage()
    assert Job.objects.get().result is None


def test_a_handler_that_finishes_its_job_itself_has_the_last_word() -> None:
    @job_handler("own")
    def own(job: Any, lease: Any) -> str:
        lease.finish(result="finished")
        return "returned"

    enqueue("own")
    assert once() == Tally(claimed=1, succeeded=1)
    assert Job.objects.get().result == "finished"


def test_each_job_of_a_group_has_its_own_exception() -> None:
    @job_handler("odd")
    def odd(job: Any, lease: Any) -> None:
        if job.payload["n"]:
            raise LookupError(f"number {job.payload['n']}")
        raise SystemExit(3)

    ids = enqueue_many(({"payload": {"n": n}} for n in range(3)), type="odd", max_attempts=1).ids
    assert once() == Tally(claimed=3, failed=3)
    told = {e.job_id: e.details for e in JobEvent.objects.filter(type="job:failed")}
    assert [told[str(pk)]["exception"] for pk in ids] == [
        "builtins.SystemExit",
        "builtins.LookupError",
        "builtins.LookupError",
    ]
    assert [told[str(pk)]["traceback"].splitlines()[-1] for pk in ids[1:]] == [
        "LookupError: number 1",
        "LookupError: number 2",
    ]
