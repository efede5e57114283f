"""The backend for tests that expect the work of a task to be done."""

from datetime import timedelta
from typing import Any

from django.db import IntegrityError
from django.test import TestCase, override_settings
from django.utils import timezone

from jobreaper import enqueue, job_handler
from jobreaper.backend.compat import TaskResultStatus, task_finished
from jobreaper.models import Job
from jobreaper.queue.handlers import _handlers
from jobreaper.testing import run_due
from tests.backend import tasks

EAGER = {"default": {"BACKEND": "jobreaper.testing.EagerBackend", "QUEUES": []}}


@override_settings(TASKS=EAGER)
class Eager(TestCase):
    def test_a_task_has_run_when_it_is_enqueued(self) -> None:
        assert tasks.echo.enqueue(1, two=2).return_value == [[1], {"two": 2}]
        result = tasks.awhich.enqueue()
        assert result.return_value == [result.id, 1, TaskResultStatus.RUNNING]

    def test_a_task_that_fails_has_one_attempt_and_its_end_is_told(self) -> None:
        told: list[Any] = []

        def listen(task_result: Any, **_: Any) -> None:
            told.append((task_result.id, task_result.status))

        task_finished.connect(listen)
        self.addCleanup(task_finished.disconnect, listen)
        with self.captureOnCommitCallbacks(execute=True):
            result = tasks.fail.enqueue()
        assert result.status == TaskResultStatus.FAILED
        assert [error.exception_class for error in result.errors] == [LookupError]
        assert told == [(result.id, TaskResultStatus.FAILED)]

    def test_a_task_for_later_waits(self) -> None:
        later = tasks.echo.using(run_after=timezone.now() + timedelta(hours=1))
        assert later.enqueue().status == TaskResultStatus.READY


class Broken(TestCase):
    def test_a_database_error_fails_its_job_and_not_the_test(self) -> None:
        def twice(job: Any, lease: Any) -> None:
            Job.objects.create(pk=job.pk, type="twice", payload={})

        job_handler("twice")(twice)
        self.addCleanup(_handlers.pop, "twice")
        job = enqueue("twice", max_attempts=1)
        ran = run_due()
        assert isinstance(ran.errors[job.pk], IntegrityError)
        assert Job.objects.get().status == "failed"
