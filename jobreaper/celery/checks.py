"""System checks of Celery: settings that conflict with leases, and tasks that cannot run
any job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from celery import current_app
from django.core.checks import CheckMessage

from jobreaper import conf
from jobreaper.celery import schedule
from jobreaper.celery.declared import leased_tasks
from jobreaper.celery.task import LeasedTask
from jobreaper.exceptions import ConfigurationError, NotLeasable, UnknownTable
from jobreaper.findings import check, error, warning
from jobreaper.tables import table_of

# kombu's own: https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/redis.html
DEFAULT_VISIBILITY_SEC: Final = 3600


@check
def check_celery() -> Iterator[CheckMessage]:
    """Report E006 (a task without a job table), W002 (messages delivered again while their job
    runs), W003 (messages kept for a lost worker), W004 (a worker that takes every message) and W005
    (a schedule made from other settings).
    """
    try:
        settings = conf.settings()
    except ConfigurationError:  # there are checks for that
        return
    lease_sec = max(p.lease_sec for p in (settings.default_policy, *settings.stages.values()))
    tasks = leased_tasks()
    for task in tasks:
        yield from _check_task(task, lease_sec)
    if tasks and current_app.conf.worker_prefetch_multiplier == 0:
        yield warning(
            "W004",
            "worker_prefetch_multiplier is 0: the first worker takes every message, and jobs "
            "wait for it while other workers are idle.",
            "Set it to 1, or 4 with many short jobs.",
        )
    if schedule.made_too_early():
        yield warning(
            "W005",
            "The schedule of Celery beat was made before JOBREAPER was set, so its intervals "
            "are others.",
            "Call beat_schedule() below JOBREAPER.",
        )


def _check_task(task: LeasedTask, lease_sec: float) -> Iterator[CheckMessage]:
    try:
        table = table_of(task.job_model())
        if not table.can_be_leased:
            raise NotLeasable(table.name, table.missing)
    except (ConfigurationError, UnknownTable, NotLeasable) as why:
        yield error(
            "E006",
            f"Task {task.name} can run no job: {why}",
            "Name a job table in its model=….",
            task.name,
        )
    if not task.acks_late:
        return
    visible_sec = _visibility_sec()
    if visible_sec is not None and visible_sec < lease_sec:
        yield warning(
            "W002",
            f"The task has acks_late=True, and Redis delivers its message again after "
            f"{visible_sec:g} s, while a lease is {lease_sec:g} s.",
            "Leave acks_late out, since the row is the job, or set visibility_timeout in "
            "broker_transport_options to more than the longest job.",
            task.name,
        )
    if task.reject_on_worker_lost:
        yield warning(
            "W003",
            "The task has reject_on_worker_lost=True: the message of a job that kills its worker "
            "comes back again and again, although the row counts the losses.",
            "Leave it out; the job is given back and sent by itself.",
            task.name,
        )


def _visibility_sec() -> float | None:
    """Return the seconds after which Redis delivers an unacknowledged message again, or ``None``
    for any other broker.
    """
    with current_app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis":
            return None
    options = current_app.conf.broker_transport_options
    return float(options.get("visibility_timeout", DEFAULT_VISIBILITY_SEC))
