"""Settings that are wrong, or have changed since a task was enqueued."""

import sys
from typing import Any

import pytest
from django.test import override_settings

from jobreaper.backend.compat import TaskResultStatus, task_backends, task_finished
from jobreaper.queue.runs import Tally
from tests.backend import tasks
from tests.backend.conftest import BACKEND, TASKS
from tests.queue.working import once

DONE = Tally(claimed=1, succeeded=1)


@pytest.mark.parametrize(
    ("options", "id", "said"),
    [
        (None, "E012", "is not a dict"),
        ({"MODLE": "media.Job"}, "E012", "unknown option 'MODLE'"),
        ({"MODEL": "Job"}, "E014", "'Job': it is not the name of an app and a model."),
        ({"MODEL": None}, "E014", "None: it is not the name of an app and a model."),
        ({"MODEL": "media.Nobody"}, "E014", "App 'media' doesn't have a 'Nobody' model."),
        ({"MODEL": "jobreaper.JobEvent"}, "E014", "not a LeasedJob"),
    ],
    ids=str,
)
def test_wrong_options_are_reported(options: Any, id: str, said: str) -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        [problem] = task_backends["default"].check()
    assert problem.id == f"jobreaper.{id}"
    assert said in problem.msg
    assert ".." not in problem.msg


def test_a_backend_that_cannot_be_loaded_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    result = tasks.answer.enqueue()
    with override_settings(TASKS={**TASKS, "broken": {"BACKEND": "no.such.Backend"}}):
        assert once() == DONE
    result.refresh()
    assert result.return_value == 42


def test_a_task_runs_although_its_backend_has_another_name_now() -> None:
    with override_settings(TASKS={**TASKS, "old": TASKS["default"]}):
        result = tasks.answer.using(backend="old").enqueue()
    assert once() == DONE
    found = task_backends["default"].get_result(result.id)
    assert (found.status, found.backend) == (TaskResultStatus.SUCCESSFUL, "old")
    assert found.task.backend == "default"


def test_a_whole_number_is_a_priority_even_as_a_float() -> None:
    assert tasks.answer.using(priority=3.0).enqueue().task.priority == 3
    assert once() == DONE


def test_a_task_is_finished_while_its_exception_is_handled() -> None:
    handled: list[Any] = []

    def listen(**_: Any) -> None:
        handled.append(sys.exc_info()[0])

    task_finished.connect(listen)
    try:
        tasks.fail.using(max_attempts=1).enqueue()
        tasks.answer.enqueue()
        once()
    finally:
        task_finished.disconnect(listen)
    assert set(handled) == {LookupError, None}


def test_what_contains_itself_is_no_result_and_is_not_tried_again() -> None:
    result = tasks.return_itself.enqueue()
    assert once() == Tally(claimed=1, failed=1)
    result.refresh()
    assert result.errors[0].exception_class is ValueError
