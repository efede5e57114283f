"""Tasks in a `LeasedJob` of one's own."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings
from django.utils import timezone

import jobreaper
from jobreaper.backend.compat import InvalidTask, TaskResultDoesNotExist, TaskResultStatus
from jobreaper.models import Job as ReadyMade
from jobreaper.queue.runs import Tally
from project.media.models import Job
from tests.backend import tasks
from tests.backend.conftest import BACKEND
from tests.queue.working import once

OWN = {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"MODEL": "media.Job"}}}


@pytest.fixture(autouse=True)
def own(backend: Any) -> Iterator[None]:
    with override_settings(TASKS=OWN):
        yield


@pytest.mark.parametrize("task", [tasks.which, tasks.awhich], ids=["sync", "async"])
def test_a_task_is_a_job_of_this_table(task: Any) -> None:
    result = task.using(max_attempts=2).enqueue(fails_before=1)
    job = Job.objects.get()
    assert (str(job.pk), job.stage, job.max_attempts) == (result.id, task.module_path, 2)
    assert not ReadyMade.objects.exists()
    assert once() == Tally()
    assert once(model=Job) == Tally(claimed=2, failed=1, succeeded=1)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2)
    assert [error.exception_class for error in result.errors] == [LookupError]
    assert result.return_value is None  # The table has no field for it.


def test_manage_py_work_runs_the_tasks_of_a_table() -> None:
    result = tasks.echo.enqueue(1)
    call_command("work", "--once", "--table", "jobs")
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL


def test_a_task_for_later_waits() -> None:
    later = timezone.now() + timedelta(hours=1)
    tasks.echo.using(run_after=later).enqueue()
    assert Job.objects.get().next_earliest_run_at == later
    assert once(model=Job) == Tally()


def test_other_jobs_of_the_table_are_left_alone() -> None:
    job = Job.objects.create(stage="clip")
    assert once(model=Job) == Tally()
    assert jobreaper.claim(Job, job.pk) is not None
    with pytest.raises(TaskResultDoesNotExist):
        tasks.echo.get_backend().get_result(str(job.pk))
    with pytest.raises(TaskResultDoesNotExist):
        tasks.echo.get_backend().get_result("no number")


@pytest.mark.parametrize("changes", [{"priority": 1}, {"queue_name": "slow"}])
def test_what_the_table_has_no_field_for_is_refused(changes: Any) -> None:
    with pytest.raises(InvalidTask, match=r"media\.Job has no field"):
        tasks.echo.using(**changes)


def test_an_argument_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(ValueError, match="payload"):
        tasks.echo.enqueue("\x00")
    assert not Job.objects.exists()
