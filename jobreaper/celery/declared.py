"""The declared Celery tasks, and what each of them runs.

In the ready-made queue, a task whose name is the type of a job is its handler: a ``LeasedTask``
receives the job and its lease, any other task the payload as keyword arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Final

from celery import Celery, Task, current_app
from django.db import models

from jobreaper.celery.task import LeasedTask
from jobreaper.exceptions import ConfigurationError
from jobreaper.models import Job
from jobreaper.queue.handlers import Handler, import_modules, modules_of_apps

logger = logging.getLogger(__name__)

# Celery's own tasks, such as celery.chord, and those of this package are not handlers.
NOT_HANDLERS: Final = ("celery.", "jobreaper.")


@cache
def import_tasks(app: Celery) -> None:
    """Import the Celery tasks, which a process other than a Celery worker has not done: the modules
    ``tasks`` of the installed apps, and those in the app's settings ``imports`` and ``include``.

    Celery's own function for this sets up Django again, and with it the logging of a running
    worker.
    """
    import_modules([*modules_of_apps("tasks"), *app.loader.default_modules])


def leased_tasks() -> list[LeasedTask]:
    """Return every leased task of the app, by name."""
    import_tasks(current_app)
    registered = current_app.tasks
    tasks = [registered[name] for name in sorted(registered)]
    return [task for task in tasks if isinstance(task, LeasedTask)]


def tasks_by_stage(model: type[models.Model]) -> dict[str | None, LeasedTask]:
    """Return the leased tasks of ``model`` by stage. The key ``None`` is for every other stage."""
    found: dict[str | None, LeasedTask] = {}
    for task in leased_tasks():
        try:
            if task.job_model()._meta.concrete_model is not model:
                continue
        except ConfigurationError as error:
            complain(str(error))
            continue
        if task.stage in found:
            complain(
                f"{found[task.stage].name} and {task.name} both handle stage {task.stage!r} of "
                f"{model._meta.label}; the first is used"
            )
            continue
        found[task.stage] = task
    return found


@cache
def complain(message: str) -> None:
    """Log what is wrong with a declaration, only once."""
    logger.error(message)


class CelerySource:
    """Celery's tasks as a source of handlers."""

    def handlers(self, model: type[models.Model]) -> Mapping[str, Handler]:
        """Return the tasks by name, for the ready-made queue. Other tables have tasks by stage."""
        if model is not Job:
            return {}
        import_tasks(current_app)
        return {
            name: _call_of(task)
            for name, task in current_app.tasks.items()
            if not name.startswith(NOT_HANDLERS)
        }

    def stages(self, model: type[models.Model]) -> Collection[str | None]:
        """Return the stages of ``model`` that a leased task runs in Celery's workers."""
        return tasks_by_stage(model)

    def can_find(self) -> bool:
        """Return ``False``: every task is known once the tasks are imported."""
        return False

    def find(self, type: str, model: type[models.Model]) -> Handler | None:
        """Return ``None``."""
        return None


def _call_of(task: Task[..., Any]) -> Handler:
    if hasattr(task, "job_model"):
        return task.run
    return lambda job, lease: task(**job.payload)


source: Final = CelerySource()
