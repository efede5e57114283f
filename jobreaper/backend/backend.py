"""The backend: enqueues tasks as jobs, and finds their results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from django.apps import apps
from django.core.checks import CheckMessage
from django.core.exceptions import ValidationError
from django.db import models

from jobreaper import conf, values
from jobreaper.backend import running
from jobreaper.backend.compat import (
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResultDoesNotExist,
    as_plain_json,
    task_enqueued,
)
from jobreaper.backend.results import events_of, result_of, task_of
from jobreaper.base import LeasedJob
from jobreaper.db import fetch
from jobreaper.exceptions import ConfigurationError
from jobreaper.findings import error, warning
from jobreaper.models import Job
from jobreaper.queue.dedupe import check_payload
from jobreaper.queue.enqueueing import enqueue
from jobreaper.states import DEFAULT_QUEUE
from jobreaper.tables import table_of

DEFAULT_PRIORITY: Final = 0


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

    @cached_property
    def model(self) -> type[models.Model]:
        """The model of the job table.

        Raises:
            ConfigurationError: there is none of this name.
        """
        label = self.options.get("MODEL", Job._meta.label)
        try:
            return apps.get_model(label)
        except (LookupError, ValueError, AttributeError) as problem:
            raise ConfigurationError(
                f"TASKS[{self.alias!r}]['OPTIONS']['MODEL'] is {label!r}: {problem}"
            ) from None

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
        running.source.note(task)

    def _refuse_without_field(self, name: str, value: object, default: object) -> None:
        # The models may not be loaded yet when a task is declared.
        if value != default and apps.ready and name not in table_of(self.model).extras:
            raise InvalidTask(f"{self.model._meta.label} has no field {name} for {value!r}")

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> Any:
        """Create the task's job in the caller's transaction, and return its result.

        Raises:
            InvalidTask: the task is not valid for this backend.
            TypeError, ValueError: an argument is not JSON, or cannot be stored. In both cases
                nothing was written.
        """
        self.validate_task(task)
        payload = as_plain_json({"args": args, "kwargs": kwargs})
        payload["backend"] = self.alias
        max_attempts = getattr(task, "max_attempts", None)
        if max_attempts is not None:
            payload["max_attempts"] = max_attempts
        if task.run_after is not None:
            payload["run_after"] = task.run_after.isoformat()
        job = self._create(task, payload)
        result = result_of(job, task, self.alias, [])
        task_enqueued.send(type(self), task_result=result)
        return result

    def _create(self, task: Task[..., Any], payload: dict[str, Any]) -> Any:
        max_attempts = payload.get("max_attempts")
        if self.model is Job:
            return enqueue(
                task.module_path,
                payload,
                run_at=task.run_after,
                priority=task.priority,
                queue=task.queue_name,
                max_attempts=max_attempts,
            )
        check_payload(payload)
        table = table_of(self.model)
        own = {
            "type": task.module_path,
            "priority": task.priority,
            "queue": task.queue_name,
        }
        values = {
            "payload": payload,
            "stage": task.module_path,
            "next_earliest_run_at": task.run_after,
            **{name: value for name, value in own.items() if name in table.extras},
            **({} if max_attempts is None else {"max_attempts": max_attempts}),
        }
        job = self.model._base_manager.using(table.alias).create(**values)
        # What the database has filled in.
        job.refresh_from_db()
        if task.run_after is None and conf.settings().notify:
            fetch(table.connection(), "SELECT pg_notify(%(name)s, '')", {"name": table.name})
        return job

    def get_result(self, result_id: str) -> Any:
        """Return the result with this id.

        Raises:
            TaskResultDoesNotExist: there is none; perhaps its job was deleted since.
        """
        table = table_of(self.model)
        try:
            table.prepare_pk(result_id)
        except (ValueError, TypeError, ValidationError):
            raise TaskResultDoesNotExist(result_id) from None
        job: Any = self.model._base_manager.using(table.alias).filter(pk=result_id).first()
        if job is None or not running.is_of_task(job):
            raise TaskResultDoesNotExist(result_id)
        alias = job.payload.get("backend", self.alias)
        task = task_of(job, alias, table.kind(job), self.task_class)
        return result_of(job, task, alias, events_of(table, job))

    def check(self, **kwargs: Any) -> Iterator[CheckMessage]:
        """Report E012 (an unknown option), E013 (a queue that no job can have), E014 (a model that
        cannot keep tasks) and W028 (one that cannot keep what they return).
        """
        for option in self.options.keys() - {"MODEL"}:
            yield error(
                "E012",
                f"TASKS[{self.alias!r}]['OPTIONS'] has the unknown option {option!r}.",
                "The only option is 'MODEL': remove the other.",
            )
        yield from self._check_model()
        for queue in sorted(self.queues, key=str):
            try:
                values.short_name(queue)
            except ValueError as problem:
                yield error(
                    "E013",
                    f"TASKS[{self.alias!r}]['QUEUES'] has the bad queue {queue!r}: {problem}.",
                    "Rename it.",
                )

    def _check_model(self) -> Iterator[CheckMessage]:
        try:
            model = self.model
        except ConfigurationError as problem:
            yield error("E014", f"{problem}.", "Name a model, such as 'media.Job'.")
            return
        names = {own.name: type(own) for own in model._meta.concrete_fields}
        if not issubclass(model, LeasedJob) or not issubclass(
            names.get("payload", models.Field), models.JSONField
        ):
            yield error(
                "E014",
                f"TASKS[{self.alias!r}] keeps tasks in {model._meta.label}, which is not a "
                "LeasedJob with a JSONField named payload.",
                "Give it both, or name another model.",
            )
        elif not table_of(model).has_result:
            yield warning(
                "W028",
                f"TASKS[{self.alias!r}] keeps tasks in {model._meta.label}, which has no JSONField "
                "named result: what a task returns is not kept.",
                "Add the field.",
            )
