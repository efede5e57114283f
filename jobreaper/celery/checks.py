"""System checks of Celery: settings that fight the leases, tasks that can run no job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from celery import current_app
from django.apps.config import AppConfig
from django.core import checks

from jobreaper import conf
from jobreaper.celery import schedule
from jobreaper.celery.dispatcher import leased_tasks
from jobreaper.celery.task import LeasedTask
from jobreaper.exceptions import ConfigurationError, NotLeasable, UnknownTable
from jobreaper.tables import table_of

DOCS: Final = "See docs/checks.md#"

# kombu's own: https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/redis.html
DEFAULT_VISIBILITY_SEC: Final = 3600


def register() -> None:
    """Register the check; called once from ``AppConfig.ready()``."""
    checks.register(check_celery, "jobreaper")


def check_celery(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Report E006 (a task without a job table), W002 (messages delivered again in mid-job), W003
    (messages kept for a lost worker), W004 (a worker that takes every message) and W005 (a schedule
    made of other settings).
    """
    try:
        settings = conf.settings()
    except ConfigurationError:  # there are checks for that
        return []
    lease_sec = max(p.lease_sec for p in (settings.default_policy, *settings.stages.values()))
    tasks = leased_tasks()
    found = [message for task in tasks for message in _check_task(task, lease_sec)]
    if tasks and current_app.conf.worker_prefetch_multiplier == 0:
        found.append(
            checks.Warning(
                "worker_prefetch_multiplier is 0: the first worker takes every message, and jobs "
                "wait for it while other workers are idle.",
                hint=f"Set it to 1, or 4 with many short jobs. {DOCS}w004",
                id="jobreaper.W004",
            )
        )
    if schedule.made_too_early():
        found.append(
            checks.Warning(
                "The schedule of Celery beat was made before JOBREAPER was set, so its intervals "
                "are others.",
                hint=f"Call beat_schedule() below JOBREAPER. {DOCS}w005",
                id="jobreaper.W005",
            )
        )
    return found


def _check_task(task: LeasedTask, lease_sec: float) -> Iterator[checks.CheckMessage]:
    try:
        table = table_of(task.job_model())
        if not table.can_be_leased:
            raise NotLeasable(table.name, table.missing)
    except (ConfigurationError, UnknownTable, NotLeasable) as error:
        yield checks.Error(
            f"Task {task.name} can run no job: {error}",
            hint=f"Name a job table in its model=…. {DOCS}e006",
            obj=task.name,
            id="jobreaper.E006",
        )
    if not task.acks_late:
        return
    visible_sec = _visibility_sec()
    if visible_sec is not None and visible_sec < lease_sec:
        yield checks.Warning(
            f"The task has acks_late=True, and Redis delivers its message again after "
            f"{visible_sec:g} s, while a lease is {lease_sec:g} s.",
            hint="Leave acks_late out, since the row is the job, or set visibility_timeout in "
            f"broker_transport_options to more than the longest job. {DOCS}w002",
            obj=task.name,
            id="jobreaper.W002",
        )
    if task.reject_on_worker_lost:
        yield checks.Warning(
            "The task has reject_on_worker_lost=True: the message of a job that kills its worker "
            "comes back again and again, although the row counts the losses.",
            hint=f"Leave it out; the job is given back and sent by itself. {DOCS}w003",
            obj=task.name,
            id="jobreaper.W003",
        )


def _visibility_sec() -> float | None:
    """Return the seconds after which Redis delivers an unacknowledged message again, ``None`` with
    any other broker.
    """
    with current_app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis":
            return None
    options = current_app.conf.broker_transport_options
    return float(options.get("visibility_timeout", DEFAULT_VISIBILITY_SEC))
