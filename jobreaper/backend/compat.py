"""``django.tasks`` where Django has it, and otherwise the package ``django-tasks``, which has the
same classes under some other names.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

PACKAGE: Final = "django.tasks" if find_spec("django.tasks") else "django_tasks"

if TYPE_CHECKING:
    from django_tasks import task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    AnyTask = Task[..., Any]
    AnyTaskResult = TaskResult[Any]
else:
    _root, _base, _backends, _exceptions, _signals = (
        import_module(f"{PACKAGE}{module}")
        for module in ("", ".base", ".backends.base", ".exceptions", ".signals")
    )
    task_backends = _root.task_backends
    BaseTaskBackend = _backends.BaseTaskBackend
    Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
    TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus
    # Django's own are not generic.
    AnyTask, AnyTaskResult = Task, TaskResult
    normalize_json = _base.normalize_json
    InvalidTask, InvalidTaskBackend = (
        getattr(_exceptions, name, None) or getattr(_exceptions, f"{name}Error")
        for name in ("InvalidTask", "InvalidTaskBackend")
    )
    TaskResultDoesNotExist = _exceptions.TaskResultDoesNotExist
    task_enqueued, task_started = _signals.task_enqueued, _signals.task_started
    task_finished = _signals.task_finished

__all__ = [
    "AnyTask",
    "AnyTaskResult",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "as_plain_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]


def as_plain_json(value: Any) -> Any:
    """Return a value as it is after a way through JSON: tuples are lists, keys are text.

    Raises:
        TypeError, ValueError: it is not JSON.
    """
    try:
        return json.loads(json.dumps(normalize_json(value), allow_nan=False))
    except RecursionError:
        raise ValueError("it is nested too deeply, or contains itself") from None
