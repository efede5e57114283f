"""A task whose lease is lost: told when it asks, or in the middle of its work."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import Ignore
from django.db import connection

from jobreaper import LeaseLost, cancel
from jobreaper.models import Job
from jobreaper.protocol.holding import holding_of
from jobreaper.states import EventType, Status
from tests.celery.brokers import raising
from tests.celery.conftest import Run
from tests.rows import Rows

pytestmark = pytest.mark.usefixtures("transactional_db")


def lose(lease: Any) -> None:
    """Take the job away, and let the worker know."""
    cancel(Job, [lease.pk], by="somebody")
    with pytest.raises(LeaseLost):
        lease.heartbeat()


def test_a_function_is_told_by_check_and_by_lost_that_its_lease_is_gone(
    run: Run, jobs: Rows
) -> None:
    seen: list[bool] = []

    def work(job: Any, lease: Any) -> None:
        lease.check()
        seen.append(lease.lost)
        lose(lease)
        seen.append(lease.lost)
        lease.check()
        raise AssertionError("check() let a lost lease pass")

    pk = run(work, raises=Ignore)
    assert seen == [False, True]
    assert jobs.event_types(pk) == [EventType.ADMIN_CANCELLED]


def test_whatever_a_function_does_after_its_loss_the_job_stays_as_it_was_decided(
    run: Run, jobs: Rows
) -> None:
    """A cancelled job is not marked completed: pulp 7389."""

    def works_on(job: Any, lease: Any) -> None:
        lose(lease)

    def fails(job: Any, lease: Any) -> None:
        lose(lease)
        raise ZeroDivisionError

    for work, raised in ((works_on, Ignore), (fails, ZeroDivisionError)):
        pk = run(work, raises=raised)
        assert jobs.row(pk)["status"] == Status.CANCELLED
        assert EventType.JOB_FINISHED not in jobs.event_types(pk)


def test_a_lost_lease_within_a_retry_writes_nothing(run: Run, jobs: Rows) -> None:
    def work(self: Any, job: Any, lease: Any) -> None:
        lose(lease)
        try:
            lease.check()
        except LeaseLost as error:
            self.retry(exc=error)

    pk = run(work, raises=Ignore, bind=True)
    assert jobs.event_types(pk) == [EventType.ADMIN_CANCELLED]


def test_some_other_lease_that_is_lost_is_an_exception_like_any(run: Run, jobs: Rows) -> None:
    pk = run(raising(LeaseLost("of another job", table="jobs", pk=1)), raises=LeaseLost)
    assert jobs.event_types(pk) == [EventType.JOB_RETRIED]


# Told in the middle of the work


def work_until_interrupted(reached: list[str]) -> Callable[..., None]:
    def work(job: Any, lease: Any) -> None:
        cancel(Job, [job.pk], by="somebody")
        threading.Thread(target=_beat, args=(lease,)).start()
        for _ in range(10_000):
            threading.Event().wait(0.001)
        reached.append("the end")

    return work


def _beat(lease: Any) -> None:
    with pytest.raises(LeaseLost):
        lease.heartbeat()
    connection.close()


def test_with_interrupt_lease_lost_is_raised_in_the_middle_of_the_work(
    run: Run, jobs: Rows
) -> None:
    reached: list[str] = []
    pk = run(work_until_interrupted(reached), raises=Ignore, interrupt=True)
    assert reached == []
    assert jobs.row(pk)["status"] == Status.CANCELLED


def test_without_interrupt_the_work_is_not_disturbed(run: Run, jobs: Rows) -> None:
    reached: list[str] = []

    def work(job: Any, lease: Any) -> None:
        cancel(Job, [job.pk], by="somebody")
        thread = threading.Thread(target=_beat, args=(lease,))
        thread.start()
        thread.join()
        reached.append("the end")

    run(work, raises=Ignore)
    assert reached == ["the end"]


def test_no_interrupt_comes_after_the_function_has_returned(run: Run, jobs: Rows) -> None:
    leases: list[Any] = []
    pk = run(lambda job, lease: leases.append(lease), interrupt=True)
    assert holding_of(leases[0]).on_lost is None
    assert jobs.event_types(pk) == [EventType.JOB_FINISHED]


def test_an_interrupt_that_comes_with_the_functions_return_goes_no_further(
    run: Run, jobs: Rows
) -> None:
    """Raised later it would hit Celery's own code."""

    def work(job: Any, lease: Any) -> None:
        cancel(Job, [job.pk], by="somebody")
        # Set from the thread itself, so that it stays pending until the block is left.
        thread = threading.Thread(target=_beat, args=(lease,))
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.001)
        except LeaseLost:
            pass

    pk = run(work, raises=Ignore, interrupt=True)
    for _ in range(1000):
        threading.Event().wait(0)
    assert jobs.row(pk)["status"] == Status.CANCELLED


# A process of its own: what goes wrong here goes on for ever.
TRACED = """
import sys, types
import django
django.setup()
from jobreaper.protocol.interrupting import interrupting
lease = types.SimpleNamespace(on_lost=None)
sys.settrace(lambda *event: None)
for _ in range(3):
    with interrupting(lease):
        pass
print("done")
"""


def test_python_runs_on_as_before_when_the_function_has_returned() -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"}
    done = subprocess.run(
        [sys.executable, "-c", TRACED],
        env={**environment, "JOBREAPER_NO_SERVERS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "done\n", done.stderr
