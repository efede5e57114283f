"""Sending due jobs to Celery.

The row is the job and a message is a nudge. A job is marked as sent before its message goes out; a
message that is lost expires, and the job is sent again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple

from celery import current_app
from celery.exceptions import OperationalError as BrokerError
from django.db import Error, models, transaction

from jobreaper import conf
from jobreaper.base import LeasedJob
from jobreaper.celery.task import LeasedTask
from jobreaper.db import fetch, in_words, one_outage, retrying
from jobreaper.exceptions import ConfigurationError, JobreaperError
from jobreaper.handlers import handlers as job_handlers
from jobreaper.handlers import import_tasks
from jobreaper.models import Job
from jobreaper.states import Status
from jobreaper.tables import JobTable, job_tables, table_of

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE: Final = 500
# Enough to say that a stage has no task; counting further says nothing more.
MOST_UNHANDLED: Final = 1000
# Some ten milliseconds of reading an index.
MOST_LOOKED_AT: Final = 100_000
# Whoever enqueues waits no longer for a broker that is away. A host that drops packets takes
# broker_connection_timeout, four seconds by default.
CONNECT_SEC: Final = 2


# What was last said of each table: a job that waits is worth one line, not one every few seconds.
_reported: Final[dict[str, frozenset[str | None]]] = {}


class Due(NamedTuple):
    """A job that is marked as sent and now to be sent."""

    pk: Any
    stage: str | None
    dispatched_at: datetime


@dataclass
class DispatchResult:
    """What one dispatch did: messages sent by table, and queued jobs without a task by table and
    stage.
    """

    sent: dict[str, int] = field(default_factory=dict)
    unhandled: dict[str, dict[str | None, int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def handlers(model: type[models.Model]) -> dict[str | None, LeasedTask]:
    """Return the leased tasks of ``model`` by stage; ``None`` is the one for every other stage."""
    found: dict[str | None, LeasedTask] = {}
    for task in leased_tasks():
        try:
            if task.job_model()._meta.concrete_model is not model:
                continue
        except ConfigurationError as error:
            _complain(str(error))
            continue
        if task.stage in found:
            _complain(
                f"{found[task.stage].name} and {task.name} both handle stage {task.stage!r} of "
                f"{model._meta.label}; the first is used"
            )
            continue
        found[task.stage] = task
    return found


@cache
def _complain(message: str) -> None:
    """Log what is wrong with a declaration, once and not every few seconds."""
    logger.error(message)


def leased_tasks() -> list[LeasedTask]:
    """Return every leased task of the app, by name."""
    import_tasks(current_app)
    registered = current_app.tasks
    tasks = [registered[name] for name in sorted(registered)]
    return [task for task in tasks if isinstance(task, LeasedTask)]


@one_outage()
def dispatch(*, batch_size: int = DEFAULT_BATCH_SIZE) -> DispatchResult:
    """Send the due jobs of every job table, oldest and highest priority first, at most
    ``batch_size`` of each table.

    Any number of dispatchers may run at once: a job is sent by one of them. With the broker away
    the jobs stay queued. One table's trouble stops no other, and is in the result.
    """
    result = DispatchResult()
    for table in job_tables():
        tasks = handlers(table.model)
        if not tasks:
            continue
        stages = None if None in tasks else list(tasks)
        try:
            _report_unhandled(table, tasks, result)
            due = _mark(table, {"id": None, "n": batch_size, "stages": stages})
            result.sent[table.name] = _send(table, tasks, due)
        except (BrokerError, Error, JobreaperError) as error:
            said = in_words(error)
            logger.error("jobs of %s were not sent: %s", table.name, said)
            result.errors.append(f"{table.name}: {said}")
    return result


def dispatch_job(model: type[models.Model], pk: object, *, pooled: bool = True) -> bool:
    """Send one job if it is due, not sent lately and has a task; return whether it was sent.

    With the broker away the job stays queued, and the next dispatch sends it. A process that forks
    sends with ``pooled=False``: a child that drops an inherited connection to AMQP shuts it down.
    """
    table = table_of(model)
    tasks = handlers(table.model)
    if not tasks:
        return False
    stages = None if None in tasks else list(tasks)
    params = {"id": table.prepare_pk(pk), "n": 1, "stages": stages}
    try:
        return bool(_send(table, tasks, _mark(table, params), pooled))
    except BrokerError as error:
        logger.error("%s %s was not sent: %s", table.name, pk, error)
        return False


def send_on_commit(sender: type[models.Model], instance: Any, created: bool, **kwargs: Any) -> None:
    """Send a job that was made through Django when its transaction commits, and never before; a
    receiver of ``post_save``.
    """
    if (
        created
        and not kwargs.get("raw")
        and isinstance(instance, LeasedJob)
        and instance.status == Status.QUEUED
    ):
        transaction.on_commit(
            lambda: dispatch_job(sender, instance.pk), using=instance._state.db, robust=True
        )


def send_enqueued(sender: type[models.Model], pks: Sequence[Any], **kwargs: Any) -> None:
    """Send jobs that one statement made; a receiver of ``jobs_enqueued``. What is not due, or more
    than a batch, is left to the next dispatch.
    """
    if len(pks) == 1:
        dispatch_job(sender, pks[0])
        return
    table = table_of(sender)
    tasks = handlers(table.model)
    if not tasks:
        return
    stages = None if None in tasks else list(tasks)
    params = {"id": None, "n": min(len(pks), DEFAULT_BATCH_SIZE), "stages": stages}
    try:
        _send(table, tasks, _mark(table, params))
    except BrokerError as error:
        logger.error("the broker did not take the jobs of %s: %s", table.name, error)


def _mark(table: JobTable, params: dict[str, Any]) -> list[Due]:
    connection = table.connection()
    settings = conf.settings()
    limited = settings.limits_any_of(params["stages"])
    statement = table.limited_statement("dispatch") if limited else table.statement("dispatch")
    given = {
        **params,
        "again_sec": settings.dispatch_again_sec,
        "limits": settings.limits_json,
    }
    rows = retrying(connection, lambda _: fetch(connection, statement, given))
    return list(map(Due._make, rows))


def _send(
    table: JobTable,
    tasks: Mapping[str | None, LeasedTask],
    due: Iterable[Due],
    pooled: bool = True,
) -> int:
    """Send the messages and return how many.

    Jobs that the broker did not take are unmarked. One that cannot be sent for a reason of its own,
    such as a queue that is declared otherwise, stays marked: it is tried again with those sent
    lately, and stands in nobody's way until then.

    Raises:
        BrokerError: the broker is away.
    """
    sent = 0
    waiting = deque(due)
    try:
        while waiting:
            try:
                with _producer(pooled) as producer:
                    while waiting:
                        _publish(producer, tasks, waiting[0])
                        waiting.popleft()
                        sent += 1
            except _ConnectionDied:
                if not pooled:
                    raise
                # It may have been dead in the pool for long. A new one shows whether the broker is.
                pooled = False
            except BrokerError:
                raise
            except Exception:
                logger.exception("cannot send %s %s", table.name, waiting.popleft().pk)
    finally:
        if waiting:
            fetch(
                table.connection(),
                table.statement("undo_dispatch"),
                {
                    "ids": [job.pk for job in waiting],
                    "dispatched_at": [job.dispatched_at for job in waiting],
                },
            )
    return sent


def _publish(producer: Any, tasks: Mapping[str | None, LeasedTask], job: Due) -> None:
    task = tasks.get(job.stage) or tasks[None]
    settings = conf.settings()
    policy = settings.policy(job.stage)
    options: dict[str, Any] = {"queue": policy.queue, "priority": policy.priority}
    task.apply_async(
        args=(job.pk,),
        producer=producer,
        expires=settings.dispatch_again_sec,
        retry=False,
        **{name: value for name, value in options.items() if value is not None},
    )


class _ConnectionDied(BrokerError):
    """A connection that stood has gone."""


@contextmanager
def _producer(pooled: bool) -> Iterator[Any]:
    """Return a producer on a connection that is known to be up; left to itself, kombu tries to
    connect for ever.

    Raises:
        BrokerError: the broker could not be reached or went away.
    """
    app: Any = current_app
    if app.conf.task_always_eager:  # as in users' tests, which have no broker
        yield None
        return
    source = app.pool.acquire(block=True) if pooled else app.connection_for_write()
    with source as connection:
        try:
            connection.ensure_connection(
                max_retries=1, interval_start=0, interval_max=0.5, timeout=CONNECT_SEC
            )
        except Exception as error:
            raise BrokerError(str(error)) from error
        # An exception that leaves this block has the pool replace the connection.
        try:
            yield app.amqp.Producer(connection)
        except (BrokerError, OSError, *connection.connection_errors) as error:
            raise _ConnectionDied(str(error)) from error


def _report_unhandled(
    table: JobTable, tasks: dict[str | None, LeasedTask], result: DispatchResult
) -> None:
    """Name the stages whose jobs wait for a task. A table without any task has other workers."""
    stages_handled = [stage for stage in tasks if stage]
    if table.model is Job:
        # `manage.py work` runs these; a stage is the type where it has no name of its own.
        stages_handled += job_handlers()
    handled = {
        "stages": stages_handled,
        "look_at": MOST_LOOKED_AT,
        "most": MOST_UNHANDLED,
    }
    statement = table.statement("unhandled")
    rows = [] if None in tasks else fetch(table.connection(), statement, handled)
    if rows:
        result.unhandled[table.name] = dict(rows)
    stages = frozenset(stage for stage, _ in rows)
    if stages - _reported.get(table.name, frozenset()):
        logger.warning("no task handles these stages of %s: %s", table.name, dict(rows))
    _reported[table.name] = stages
