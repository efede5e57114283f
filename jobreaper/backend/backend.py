"""The backend: what a project's settings name.

Tasks are declared wherever a project likes, and so perhaps before Django has loaded the apps: what
needs models is imported when the first task is enqueued or looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core.checks import CheckMessage

from jobreaper import values
from jobreaper.backend import declared
from jobreaper.backend.compat import (
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    Task,
    as_plain_json,
    task_enqueued,
)
from jobreaper.exceptions import ConfigurationError
from jobreaper.findings import error
from jobreaper.states import DEFAULT_QUEUE

if TYPE_CHECKING:
    from django.db import models

DEFAULT_PRIORITY: Final = 0
READY_MADE: Final = "jobreaper.Job"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobreaperTask(AnyTask):
    """A task that may say how many attempts it has: ``@task(max_attempts=5)``, where ``task()``
    takes it (Django 6.1), or ``.using(max_attempts=5)``.
    """

    max_attempts: int | None = None

    def using(self, *, max_attempts: int | None = None, **changes: Any) -> Any:
        """Return a task with these changes."""
        # Without super(): a dataclass with slots is another class than the one written here.
        task = Task.using(self, **changes)
        return task if max_attempts is None else replace(task, max_attempts=max_attempts)


class JobreaperBackend(BaseTaskBackend):
    """Keeps tasks as jobs of the ready-made table, or of the table that ``OPTIONS["MODEL"]`` names,
    for ``manage.py work``.

    A task is a job whose type is the task's path. ``docs/django-tasks.md`` says what becomes of
    each part of a task and of its result.
    """

    task_class: type[Task[..., Any]] = JobreaperTask  # type: ignore[assignment]

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        given = self.options
        self._has_bad_options = not isinstance(given, Mapping)
        self.options = {} if self._has_bad_options else given

    @cached_property
    def model(self) -> type[models.Model]:
        """The model of the job table.

        Raises:
            ConfigurationError: there is none of this name.
        """
        label = self.options.get("MODEL", READY_MADE)
        try:
            return apps.get_model(label)
        except LookupError as problem:
            why = str(problem).rstrip(".")
        except (ValueError, TypeError, AttributeError):
            why = "it is not the name of an app and a model"
        raise ConfigurationError(f"TASKS[{self.alias!r}]['OPTIONS']['MODEL'] is {label!r}: {why}")

    def validate_task(self, task: Task[..., Any]) -> None:
        """Check a task, and remember it as a handler for workers.

        Raises:
            InvalidTask: no job can be made of it.
        """
        super().validate_task(task)
        try:
            values.short_name(task.module_path)
            values.short_name(task.queue_name)
            values.optional(values.count)(getattr(task, "max_attempts", None))
        except ValueError as problem:
            raise InvalidTask(f"{task.module_path}: {problem}") from None
        if self.options.get("MODEL"):
            self._refuse_without_field("priority", task.priority, DEFAULT_PRIORITY)
            self._refuse_without_field("queue", task.queue_name, DEFAULT_QUEUE)
        declared.note(task)

    def _refuse_without_field(self, name: str, value: object, default: object) -> None:
        # The models may not be loaded yet when a task is declared.
        if value == default or not apps.ready:
            return
        from jobreaper.tables import table_of

        if name not in table_of(self.model).extras:
            raise InvalidTask(f"{self.model._meta.label} has no field {name} for {value!r}")

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> Any:
        """Create the task's job in the caller's transaction, and return its result.

        Raises:
            InvalidTask: the task is not valid for this backend.
            TypeError, ValueError: an argument is not JSON, or cannot be stored. In both cases
                nothing was written.
        """
        from jobreaper.backend import kept

        self.validate_task(task)
        payload = as_plain_json({"args": args, "kwargs": kwargs})
        payload["backend"] = self.alias
        max_attempts = getattr(task, "max_attempts", None)
        if max_attempts is not None:
            payload["max_attempts"] = max_attempts
        if task.run_after is not None:
            payload["run_after"] = task.run_after.isoformat()
        result = kept.create(self.model, task, payload, self.alias)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result with this id.

        Raises:
            TaskResultDoesNotExist: there is none; perhaps its job was deleted since.
        """
        from jobreaper.backend import kept

        return kept.find(self.model, result_id, self.alias, self.task_class)

    def check(self, **kwargs: Any) -> Iterator[CheckMessage]:
        """Report E012 (an unknown option, or no dict of them), E013 (a queue that no job can have),
        E014 (a model that cannot keep tasks) and W028 (one that cannot keep what they return).
        """
        if self._has_bad_options:
            yield error("E012", f"TASKS[{self.alias!r}]['OPTIONS'] is not a dict.", "Make it one.")
        for option in self.options.keys() - {"MODEL"}:
            yield error(
                "E012",
                f"TASKS[{self.alias!r}]['OPTIONS'] has the unknown option {option!r}.",
                "The only option is 'MODEL': remove the other.",
            )
        try:
            model = self.model
        except ConfigurationError as problem:
            yield error("E014", f"{problem}.", "Name a model, such as 'media.Job'.")
        else:
            from jobreaper.backend import kept

            yield from kept.problems(model, self.alias)
        for queue in sorted(self.queues, key=str):
            try:
                values.short_name(queue)
            except ValueError as problem:
                yield error(
                    "E013",
                    f"TASKS[{self.alias!r}]['QUEUES'] has the bad queue {queue!r}: {problem}.",
                    "Rename it.",
                )
