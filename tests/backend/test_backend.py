"""What Django asks of a backend, in the order of a task's life."""

import sys
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

import jobreaper
from jobreaper import claim
from jobreaper.backend import declared
from jobreaper.backend.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from jobreaper.models import Job
from jobreaper.queue.runs import Tally
from jobreaper.queue.unhandled import unhandled
from jobreaper.tables import table_of
from tests.backend import tasks
from tests.backend.conftest import BACKEND
from tests.queue.working import once

ARGUMENTS = [
    None,
    True,
    0,
    -(2**60),
    1.5,
    "",
    "ä\U0001f984",
    [],
    [[1], {}],
    {},
    {"a": {"b": [None]}},
]
DONE = Tally(claimed=1, succeeded=1)


def refreshed(result: Any) -> Any:
    result.refresh()
    return result


# Enqueueing.


@pytest.mark.parametrize("task", [tasks.echo, tasks.aecho], ids=["sync", "async"])
def test_a_task_waits_until_a_worker_runs_it(task: Any) -> None:
    result = task.enqueue(1, two=3)
    assert result.status == TaskResultStatus.READY
    assert not result.is_finished
    assert result.enqueued_at is not None
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None,) * 3
    assert (result.args, result.kwargs, result.attempts) == ([1], {"two": 3}, 0)
    assert (result.task, result.backend, result.errors) == (task, "default", [])
    with pytest.raises(ValueError, match="not finished"):
        result.return_value  # noqa: B018

    assert once() == DONE
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.return_value == [[1], {"two": 3}]
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert result.attempts == 1
    assert result.errors == []


def test_coroutines_enqueue_and_look_too() -> None:
    async def through() -> Any:
        result = await tasks.answer.aenqueue()
        again = await tasks.answer.aget_result(result.id)
        assert again == result
        await again.arefresh()
        return again

    result = async_to_sync(through)()
    assert once() == DONE
    assert refreshed(result).return_value == 42


@pytest.mark.parametrize("value", ARGUMENTS, ids=repr)
def test_every_argument_that_json_takes_arrives(value: Any) -> None:
    result = tasks.echo.enqueue(value, named=value)
    assert once() == DONE
    assert refreshed(result).return_value == [[value], {"named": value}]


def test_tuples_and_bytes_arrive_as_django_normalizes_them() -> None:
    result = tasks.echo.enqueue((1, (2,)), b"text")
    assert result.args == [[1, [2]], "text"]
    assert once() == DONE
    assert refreshed(result).return_value == [[[1, [2]], "text"], {}]


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, float("nan"), "\x00", "\ud800", timezone.now(), ITSELF],
    ids=["object", "set", "NaN", "NUL", "half a pair", "time", "a list in itself"],
)
def test_what_is_no_json_is_refused_and_nothing_is_written(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        tasks.echo.enqueue(value)
    assert not Job.objects.exists()


def test_a_task_is_enqueued_with_its_transaction() -> None:
    with transaction.atomic():
        tasks.echo.enqueue()
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    with transaction.atomic():
        result = tasks.echo.enqueue()
        assert result.status == TaskResultStatus.READY
    assert once() == DONE


def test_queue_priority_and_time_are_those_of_the_job() -> None:
    later = timezone.now() + timedelta(hours=1)
    result = tasks.answer.using(run_after=later).enqueue()
    job = Job.objects.get()
    assert (job.queue, job.priority, job.next_earliest_run_at) == ("slow", 10, later)
    assert job.type == job.stage == "tests.backend.tasks.answer"
    assert tasks.answer.get_result(result.id).task == result.task
    assert once() == Tally()
    Job.objects.update(next_earliest_run_at=timezone.now())
    assert once() == DONE


def test_tasks_of_a_higher_priority_run_first() -> None:
    ids = [tasks.echo.using(priority=p).enqueue().id for p in (-100, 0, 100)]
    assert once() == Tally(claimed=3, succeeded=3)
    finished = Job.objects.order_by("claimed_at", "finished_at", "-priority")
    assert [str(job.pk) for job in finished] == ids[::-1]


def test_attempts_are_those_of_the_task_and_otherwise_the_setting() -> None:
    tasks.fail.using(max_attempts=7).enqueue()
    tasks.fail.enqueue()
    assert sorted(Job.objects.values_list("max_attempts", flat=True)) == [3, 7]


@pytest.mark.parametrize(
    "changes", [{"priority": 101}, {"max_attempts": 0}, {"queue_name": "\x00"}]
)
def test_what_no_job_can_be_made_of_is_refused(changes: Any) -> None:
    with pytest.raises(InvalidTask):
        tasks.answer.using(**changes)


def test_a_queue_that_the_setting_does_not_name_is_refused() -> None:
    with (
        override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}),
        pytest.raises(InvalidTask, match="slow"),
    ):
        tasks.answer.enqueue()


# Running.


@pytest.mark.parametrize("task", [tasks.which, tasks.awhich], ids=["sync", "async"])
def test_a_task_may_ask_for_its_context(task: Any) -> None:
    result = task.enqueue()
    assert once() == DONE
    assert refreshed(result).return_value == [result.id, 1, TaskResultStatus.RUNNING]


@pytest.mark.parametrize("task", [tasks.which, tasks.awhich], ids=["sync", "async"])
def test_between_attempts_a_task_is_ready_and_each_has_its_error(task: Any) -> None:
    result = task.enqueue(fails_before=2)
    seen: list[Any] = []

    def look(sender: Any, task_result: Any, **_: Any) -> None:
        seen.append((task_result.attempts, len(task_result.errors)))

    task_started.connect(look)
    try:
        assert once() == Tally(claimed=3, failed=2, succeeded=1)
    finally:
        task_started.disconnect(look)
    assert seen == [(1, 0), (2, 1), (3, 2)]
    assert refreshed(result).return_value[1] == 3
    assert result.attempts == len(result.worker_ids) == 3
    assert [error.exception_class for error in result.errors] == [LookupError] * 2
    assert result.errors[1].traceback.endswith("LookupError: attempt 2\n")
    assert result.started_at < result.last_attempted_at


@pytest.mark.parametrize("task", [tasks.fail, tasks.afail], ids=["sync", "async"])
def test_a_task_whose_attempts_are_used_up_has_failed(task: Any) -> None:
    result = task.using(max_attempts=1).enqueue("no such pixel")
    assert once() == Tally(claimed=1, failed=1)
    assert refreshed(result).status == TaskResultStatus.FAILED
    assert result.is_finished
    [error] = result.errors
    assert error.exception_class is LookupError
    assert "in fail" in error.traceback or "in afail" in error.traceback
    assert error.traceback.endswith("LookupError: no such pixel\n")
    with pytest.raises(ValueError, match="failed"):
        result.return_value  # noqa: B018


@pytest.mark.parametrize(
    ("task", "arguments", "kind"),
    [(tasks.exit_with, [3], SystemExit), (tasks.fail_silently, [], tasks.Silent)],
)
def test_any_exception_is_of_its_task_alone(task: Any, arguments: Any, kind: Any) -> None:
    result = task.using(max_attempts=1).enqueue(*arguments)
    assert once() == Tally(claimed=1, failed=1)
    assert refreshed(result).errors[0].exception_class is kind


def test_what_a_task_returns_must_be_json_and_is_not_tried_again() -> None:
    result = tasks.return_what_is_no_json.enqueue()
    assert once() == Tally(claimed=1, failed=1)
    assert refreshed(result).status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is TypeError


@pytest.mark.parametrize(("length", "status"), [(10**6, "SUCCESSFUL"), (3 * 10**6, "FAILED")])
def test_a_result_may_have_a_megabyte(length: int, status: str) -> None:
    result = tasks.return_text.enqueue(length)
    once()
    assert refreshed(result).status == status
    if status == "SUCCESSFUL":
        assert len(result.return_value) == length
    else:
        assert result.errors[0].exception_class is jobreaper.BadResult


def test_a_task_in_a_module_that_nothing_has_imported_is_found(monkeypatch: Any) -> None:
    from tests.backend.elsewhere import hidden

    result = hidden.enqueue(1)
    monkeypatch.setattr(declared, "tasks", {})
    del sys.modules["tests.backend.elsewhere"]
    assert once() == DONE
    assert refreshed(result).return_value == 2


def test_a_task_whose_code_is_gone_waits_and_is_named() -> None:
    result = tasks.echo.enqueue(1)
    Job.objects.update(type="tests.backend.tasks.gone")
    assert once() == Tally()
    assert unhandled(table_of(Job)) == {"tests.backend.tasks.gone": 1}
    found = tasks.echo.get_backend().get_result(result.id)
    assert (found.status, found.args) == (TaskResultStatus.READY, [1])
    assert found.task.module_path == "tests.backend.tasks.gone"
    assert once() == Tally()


# Results.


@pytest.mark.parametrize("key", ["123", "", "01a22456-b09f-7213-a1f5-e8963807f239"])
def test_a_result_that_does_not_exist_is_named(key: str, backend: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(key)


def test_a_job_that_was_no_task_has_no_result(backend: Any) -> None:
    job = jobreaper.enqueue("mail", {"args": []})
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(str(job.pk))


def test_a_running_task_is_running() -> None:
    result = tasks.echo.enqueue()
    lease = claim(Job, result.id)
    assert lease is not None
    assert refreshed(result).status == TaskResultStatus.RUNNING
    assert result.worker_ids == [lease.worker]
    assert result.started_at is not None


def test_a_released_attempt_does_not_count() -> None:
    result = tasks.echo.enqueue()
    lease = claim(Job, result.id)
    assert lease is not None
    lease.release()
    assert (refreshed(result).status, result.attempts) == (TaskResultStatus.READY, 0)


def test_a_lost_worker_is_an_error_and_the_task_runs_again() -> None:
    result = tasks.which.enqueue()
    assert claim(Job, result.id) is not None
    Job.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    assert jobreaper.reap([Job], hold=False).requeued == 1
    assert refreshed(result).status == TaskResultStatus.READY
    assert [error.exception_class for error in result.errors] == [jobreaper.LeaseLost]
    Job.objects.update(next_earliest_run_at=None)
    assert once() == DONE
    assert refreshed(result).return_value[1] == 2


def test_a_cancelled_task_has_failed_and_its_error_says_by_whom() -> None:
    result = tasks.echo.enqueue()
    jobreaper.cancel(Job, [result.id], by="ann", reason="not needed")
    assert refreshed(result).status == TaskResultStatus.FAILED
    assert "by ann: not needed" in result.errors[0].traceback
    assert result.errors[0].exception_class.__name__ == "JobCancelled"


# Signals.


def test_signals_are_sent_as_django_sends_them(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    names = {task_enqueued: "enqueued", task_started: "started", task_finished: "finished"}

    def listen(sender: Any, signal: Any, task_result: Any, **_: Any) -> None:
        told.append((names[signal], task_result.status, sender.__name__))

    for signal in names:
        signal.connect(listen)
    try:
        tasks.echo.enqueue()
        once()
        tasks.fail.using(max_attempts=2).enqueue()
        once()
    finally:
        for signal in names:
            signal.disconnect(listen)
    of = "JobreaperBackend"
    assert told == [
        ("enqueued", "READY", of),
        ("started", "RUNNING", of),
        ("finished", "SUCCESSFUL", of),
        ("enqueued", "READY", of),
        ("started", "RUNNING", of),
        ("started", "RUNNING", of),
        ("finished", "FAILED", of),
    ]


# Settings.


def test_the_check_is_content_with_a_good_setting(backend: Any) -> None:
    assert list(backend.check()) == []


@pytest.mark.parametrize(
    ("setting", "number"),
    [
        ({"OPTIONS": {"MODL": "x"}}, "E012"),
        ({"QUEUES": [""]}, "E013"),
        ({"OPTIONS": {"MODEL": "media.Nothing"}}, "E014"),
        ({"OPTIONS": {"MODEL": "auth.User"}}, "E014"),
        ({"OPTIONS": {"MODEL": "media.Job"}}, "W028"),
    ],
)
def test_the_check_names_what_is_wrong(setting: Any, number: str) -> None:
    from jobreaper.backend.compat import task_backends

    with override_settings(TASKS={"default": {"BACKEND": BACKEND, **setting}}):
        [found] = task_backends["default"].check()
    assert found.id == f"jobreaper.{number}"
