"""Tasks as rows of a job table: created, found, and whether a model can keep them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.core.checks import CheckMessage
from django.core.exceptions import ValidationError
from django.db import models

from jobreaper import conf
from jobreaper.backend import running
from jobreaper.backend.compat import Task, TaskResultDoesNotExist
from jobreaper.backend.results import events_of, result_of, task_of
from jobreaper.base import LeasedJob
from jobreaper.db import fetch
from jobreaper.findings import error, warning
from jobreaper.models import Job
from jobreaper.queue.dedupe import check_payload
from jobreaper.queue.enqueueing import enqueue
from jobreaper.tables import table_of


def create(
    model: type[models.Model], task: Task[..., Any], payload: dict[str, Any], alias: str
) -> Any:
    """Create the job of a task, and return its result.

    Raises:
        ValueError: an argument cannot be stored.
    """
    make = _in_ready_made if model is Job else _in_own
    return result_of(make(model, task, payload), task, alias, [])


def _in_ready_made(model: type[models.Model], task: Task[..., Any], payload: dict[str, Any]) -> Any:
    return enqueue(
        task.module_path,
        payload,
        run_at=task.run_after,
        priority=int(task.priority),
        queue=task.queue_name,
        max_attempts=payload.get("max_attempts"),
    )


def _in_own(model: type[models.Model], task: Task[..., Any], payload: dict[str, Any]) -> Any:
    check_payload(payload)
    table = table_of(model)
    own = {"type": task.module_path, "priority": int(task.priority), "queue": task.queue_name}
    values = {
        "payload": payload,
        "stage": task.module_path,
        "next_earliest_run_at": task.run_after,
        **{name: value for name, value in own.items() if name in table.extras},
    }
    if "max_attempts" in payload:
        values["max_attempts"] = payload["max_attempts"]
    job = model._base_manager.using(table.alias).create(**values)
    # What the database has filled in.
    job.refresh_from_db()
    if task.run_after is None and conf.settings().notify:
        fetch(table.connection(), "SELECT pg_notify(%(name)s, '')", {"name": table.name})
    return job


def find(
    model: type[models.Model], result_id: str, alias: str, task_class: Callable[..., Any]
) -> Any:
    """Return the result with this id.

    Raises:
        TaskResultDoesNotExist: there is none.
    """
    table = table_of(model)
    try:
        table.prepare_pk(result_id)
    except (ValueError, TypeError, ValidationError):
        raise TaskResultDoesNotExist(result_id) from None
    job: Any = model._base_manager.using(table.alias).filter(pk=result_id).first()
    if job is None or not running.is_of_task(job):
        raise TaskResultDoesNotExist(result_id)
    alias = job.payload.get("backend", alias)
    task = task_of(job, alias, table.kind(job), task_class)
    return result_of(job, task, alias, events_of(table, job))


def problems(model: type[models.Model], alias: str) -> Iterator[CheckMessage]:
    """Report E014 (a model that cannot keep tasks) and W028 (one that cannot keep what they
    return).
    """
    names = {own.name: type(own) for own in model._meta.concrete_fields}
    if not issubclass(model, LeasedJob) or not issubclass(
        names.get("payload", models.Field), models.JSONField
    ):
        yield error(
            "E014",
            f"TASKS[{alias!r}] keeps tasks in {model._meta.label}, which is not a "
            "LeasedJob with a JSONField named payload.",
            "Give it both, or name another model.",
        )
    elif not table_of(model).has_result:
        yield warning(
            "W028",
            f"TASKS[{alias!r}] keeps tasks in {model._meta.label}, which has no JSONField "
            "named result: what a task returns is not kept.",
            "Add the field.",
        )
