"""Sending due jobs to Celery.

The row is the job; a message only wakes a worker. A job is marked as sent before its message is
sent. If a message is lost, it expires, and the job is sent again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from celery import current_app
from celery.exceptions import OperationalError as BrokerError
from django.db import DatabaseError, Error, models, transaction

from jobreaper import conf
from jobreaper.base import LeasedJob
from jobreaper.celery.declared import tasks_by_stage
from jobreaper.celery.task import LeasedTask
from jobreaper.db import fetch, in_words, one_outage, retrying, without_details
from jobreaper.exceptions import JobreaperError
from jobreaper.protocol import around
from jobreaper.queue.unhandled import report_unhandled
from jobreaper.states import Reason, Status
from jobreaper.tables import JobTable, job_tables, owner_of, table_of

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE: Final = 500
# A caller that enqueues waits no longer than this for a broker that is down. A host that drops
# packets takes broker_connection_timeout, four seconds by default.
CONNECT_SEC: Final = 2

# Of these, kombu makes JSON, and the same value of the JSON.
JSON_CARRIES: Final = (str, int, float, Decimal, UUID, date, time)


class Due(NamedTuple):
    """A job that is marked as sent and has to be sent now. ``pk`` is what its message contains,
    ``key`` what the statement returned.
    """

    pk: Any
    key: Any
    stage: str | None
    dispatched_at: datetime


@dataclass
class DispatchResult:
    """The result of one dispatch: messages sent by table, and queued jobs without a task by table
    and stage.
    """

    sent: dict[str, int] = field(default_factory=dict)
    unhandled: dict[str, dict[str | None, int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


@one_outage()
def dispatch(*, batch_size: int = DEFAULT_BATCH_SIZE) -> DispatchResult:
    """Send the due jobs of every job table, highest priority and oldest first, at most
    ``batch_size`` of each table.

    Any number of dispatchers can run at once: only one of them sends a job. While the broker is
    down, the jobs stay queued. A problem with one table does not stop the others, and is in the
    result.
    """
    result = DispatchResult()
    for table in job_tables():
        # Other workers serve a table without a task.
        if not tasks_by_stage(table.model):
            continue
        try:
            if found := report_unhandled(table):
                result.unhandled[table.name] = found
            result.sent[table.name] = _send_due(table, batch_size)
        except (BrokerError, Error, JobreaperError) as error:
            said = in_words(error)
            logger.error("jobs of %s were not sent: %s", table.name, said)
            result.errors.append(f"{table.name}: {said}")
    return result


def dispatch_job(model: type[models.Model], pk: object, *, pooled: bool = True) -> bool:
    """Send one job if it is due, was not sent recently and has a task. Return whether it was sent.

    While the broker is down, the job stays queued, and the next dispatch sends it. A process that
    forks has to pass ``pooled=False``: a child that drops an inherited AMQP connection closes it.
    """
    table = table_of(model)
    try:
        return bool(_send_due(table, 1, table.prepare_pk(pk), pooled=pooled))
    except BrokerError as error:
        logger.error("%s %s was not sent: %s", table.name, pk, error)
        return False


def send_on_commit(sender: type[models.Model], instance: Any, created: bool, **kwargs: Any) -> None:
    """Send a job that was created through Django when its transaction commits. A receiver of
    ``post_save``.
    """
    if (
        created
        and not kwargs.get("raw")
        and isinstance(instance, LeasedJob)
        and instance.status == Status.QUEUED
    ):
        model = owner_of(type(instance))
        transaction.on_commit(
            lambda: dispatch_job(model, instance.pk), using=instance._state.db, robust=True
        )


def send_enqueued(sender: type[models.Model], pks: Sequence[Any], **kwargs: Any) -> None:
    """Send the jobs that one statement created. A receiver of ``jobs_enqueued``. The next dispatch
    sends jobs that are not due or do not fit into a batch.
    """
    if len(pks) == 1:
        dispatch_job(sender, pks[0])
        return
    table = table_of(sender)
    try:
        _send_due(table, min(len(pks), DEFAULT_BATCH_SIZE))
    except BrokerError as error:
        logger.error("the broker did not take the jobs of %s: %s", table.name, error)


def send_taken_back(sender: type[models.Model], jobs: Sequence[Any], **kwargs: Any) -> None:
    """Send jobs that were taken back from a dead worker, since they are due at once; a receiver of
    ``job_reaped``.
    """
    count = sum(job.reason == Reason.WORKER_LOST and job.fail_code is None for job in jobs)
    if not count:
        return
    table = table_of(sender)
    try:
        _send_due(table, min(count, DEFAULT_BATCH_SIZE), pooled=False)
    except BrokerError as error:
        logger.error("the broker did not take the jobs of %s: %s", table.name, error)


def _send_due(table: JobTable, n: int, key: Any = None, *, pooled: bool = True) -> int:
    """Send at most ``n`` due jobs that have a task, or the one with this key. Return how many.

    Raises:
        BrokerError: the broker is down.
    """
    tasks = tasks_by_stage(table.model)
    if not tasks:
        return 0
    stages = None if None in tasks else list(tasks)
    return _send(table, tasks, _mark(table, {"id": key, "n": n, "stages": stages}), pooled)


def _mark(table: JobTable, params: dict[str, Any]) -> list[Due]:
    connection = table.connection()
    settings = conf.settings()
    given = {
        **params,
        "again_sec": settings.dispatch_again_sec,
        "limits": settings.limits_json,
    }
    limited = settings.limits_any_of(params["stages"])
    statement = table.limited_statement if limited else table.statement

    def mark(key: Any, n: int = 1) -> list[Due]:
        these = {**given, "id": key, "n": n}
        rows = retrying(connection, lambda _: fetch(connection, statement("dispatch"), these))
        return [
            Due(_as_argument(table, table.read_pk(key, *as_read)), key, stage, dispatched_at)
            for key, stage, dispatched_at, *as_read in rows
        ]

    try:
        return mark(params["id"], params["n"])
    except DatabaseError as error:
        if not around.is_about_rows(table, error):
            raise
        if params["id"] is not None:
            around.remember(table, {params["id"]: in_words(error)})
            raise
    # If the table refuses even this, the reason is the table itself.
    mark(None, 0)
    marked: list[Due] = []
    try:
        candidates = statement("dispatch_candidates"), given
        around.take_one_by_one(table, params["n"], candidates=candidates, take=mark, into=marked)
    except Error:
        # The marked ones have to be sent.
        if not marked:
            raise
    return marked


def _as_argument(table: JobTable, pk: Any) -> Any:
    """Return a key as a message can contain it: as it is or, if JSON could not carry it, as the
    text that its field has for serialization.
    """
    if isinstance(pk, JSON_CARRIES):
        return pk
    field = table.pk
    return field.value_to_string(cast("Any", SimpleNamespace(**{field.attname: pk})))


def _send(
    table: JobTable,
    tasks: Mapping[str | None, LeasedTask],
    due: Iterable[Due],
    pooled: bool = True,
) -> int:
    """Send the messages and return how many.

    Jobs that the broker did not accept are unmarked. A job that cannot be sent for its own reason,
    such as a queue that is declared differently, stays marked: it is tried again with those that
    were sent, and does not block the others until then.

    Raises:
        BrokerError: the broker is down.
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
                # The connection may have been dead in the pool for long. A new one shows whether
                # the broker is down.
                pooled = False
            except BrokerError:
                raise
            except Exception as error:
                said = "cannot send %s %s"
                job = waiting.popleft()
                logger.error(said, table.name, job.pk, exc_info=without_details(error))
    finally:
        if waiting:
            _unmark(table, list(waiting))
    return sent


def _unmark(table: JobTable, unsent: list[Due]) -> None:
    """Let jobs be sent again as soon as the broker accepts messages. A job whose row cannot be
    written is sent again when its message would have expired.
    """
    params = {
        "ids": [job.key for job in unsent],
        "dispatched_at": [job.dispatched_at for job in unsent],
    }
    try:
        fetch(table.connection(), table.statement("undo_dispatch"), params)
    except DatabaseError as error:
        if not around.is_about_rows(table, error):
            raise
        if len(unsent) == 1:
            said = "%s %s is sent again only in %g s, since it cannot be unmarked: %s"
            again_sec = conf.settings().dispatch_again_sec
            logger.error(said, table.name, unsent[0].pk, again_sec, in_words(error))
            return
        # If the table refuses even this, the reason is the table itself.
        fetch(
            table.connection(), table.statement("undo_dispatch"), {"ids": [], "dispatched_at": []}
        )
        half = len(unsent) // 2
        for some in (unsent[:half], unsent[half:]):
            _unmark(table, some)


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
    """An open connection was lost."""


@contextmanager
def _producer(pooled: bool) -> Iterator[Any]:
    """Return a producer on a connection that is known to be open. Otherwise, kombu would try to
    connect forever.

    Raises:
        BrokerError: the broker could not be reached or was lost.
    """
    app: Any = current_app
    if app.conf.task_always_eager:  # as in users' tests without a broker
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
        # If an exception leaves this block, the pool replaces the connection.
        try:
            yield app.amqp.Producer(connection)
        except (BrokerError, OSError, *connection.connection_errors) as error:
            raise _ConnectionDied(str(error)) from error
