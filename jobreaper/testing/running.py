"""Running jobs in the thread of a test, and in its transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from psycopg.pq import TransactionStatus

from jobreaper.db import without_details
from jobreaper.exceptions import BadResult, LeaseLost
from jobreaper.models import Job
from jobreaper.protocol.batch import claim_group
from jobreaper.protocol.claim import claim
from jobreaper.protocol.holding import holding_of
from jobreaper.protocol.lease import Lease
from jobreaper.protocol.outcome import note_result
from jobreaper.queue.handlers import Handler, find, handlers, kind_of, plain, refuse_unrun
from jobreaper.states import Status
from jobreaper.tables import JobTable, table_of


@dataclass
class Ran:
    """What ``run_due()`` has done. ``errors`` are the exceptions of the attempts that failed, or
    whose lease was lost, by the key of the job.
    """

    succeeded: list[Any] = field(default_factory=list)
    failed: list[Any] = field(default_factory=list)
    released: list[Any] = field(default_factory=list)
    lost: list[Any] = field(default_factory=list)
    errors: dict[Any, BaseException] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of attempts."""
        return sum(map(len, (self.succeeded, self.failed, self.released, self.lost)))


def run_due(
    model: type[models.Model] = Job, handler: Handler | None = None, *, limit: int = 1000
) -> Ran:
    """Run the due jobs of a table in this thread, one after another, and end each as a worker does.
    Jobs that these enqueue, and retries that are due, are run too.

    It works in a ``TestCase``: everything is in the transaction of the test. Heartbeats do not see
    such a job, so it has to end within its lease.

    Args:
        model: the job table's model.
        handler: the function of ``(job, lease)`` to run; by default, the handler of the job's type
            or, for a table of your own, the ``LeasedTask`` of its stage.
        limit: the number of attempts at most, which ends a job that enqueues itself.
    """
    ran = Ran()
    while len(ran) < limit and (lease := _next(table_of(model), handler)) is not None:
        run(lease, handler, ran)
    return ran


def make_due(model: type[models.Model] = Job) -> int:
    """Make the queued jobs of a table due that wait for a later time, such as retries, and return
    their number. In place of waiting.
    """
    rows = model._base_manager.using(table_of(model).alias)
    column = table_of(model).columns["next_earliest_run_at"]
    name = next(own.name for own in model._meta.concrete_fields if own.column == column)
    word = table_of(model).word(Status.QUEUED)
    return rows.filter(status=word, **{f"{name}__gt": Now()}).update(**{name: Now()})


def run(
    lease: Lease,
    handler: Handler | None,
    ran: Ran | None = None,
    before_end: Callable[[], object] = lambda: None,
    *,
    retry: bool = True,
) -> BaseException | None:
    """Run a claimed job and end it, and return the exception with which it failed or by which its
    end was rejected. Without ``retry``, this attempt is its last.
    """
    function = handler or _handler_of(lease)
    error: BaseException | None = None
    with lease:
        try:
            with _leaving_a_transaction(holding_of(lease).table.connection()):
                returned = plain(function)(lease.job, lease)
                refuse_unrun("the handler", returned)
            with suppress(BadResult):
                note_result(holding_of(lease), returned)
        # Ctrl-C is for the test.
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            error = without_details(raised)
        try:
            if not lease.closed and not isinstance(error, LeaseLost):
                before_end()
                with holding_of(lease).failing_by(error):
                    lease.finish() if error is None else lease.fail(error, retry=retry)
        except LeaseLost as lost:
            error = lost
    _note(lease, error, Ran() if ran is None else ran)
    return error


@contextmanager
def _leaving_a_transaction(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """If a database error breaks the transaction of the test, undo what was written in this block:
    a worker has no transaction around its handler, and can end the job.
    """
    if not connection.in_atomic_block:
        yield
        return
    savepoint = cast("str", connection.savepoint())
    try:
        yield
    except BaseException:
        status = connection.connection.info.transaction_status
        if connection.needs_rollback or status == TransactionStatus.INERROR:
            connection.needs_rollback = False
            connection.savepoint_rollback(savepoint)
        raise


def claimed(job: Any) -> Lease:
    """Return the lease of a job that is due.

    Raises:
        AssertionError: it cannot be claimed.
    """
    lease = claim(type(job), job.pk)
    if lease is None:
        job.refresh_from_db()
        raise AssertionError(f"{job} cannot be claimed: it is {job.status}, or not due")
    return lease


def _note(lease: Lease, error: BaseException | None, ran: Ran) -> None:
    ended_by = holding_of(lease).ended_by
    ends = {"finish": ran.succeeded, "fail": ran.failed, "release": ran.released}
    ends.get(ended_by or "", ran.lost).append(lease.pk)
    if error is not None:
        ran.errors[lease.pk] = error


def _next(table: JobTable, handler: Handler | None) -> Lease | None:
    wanted: dict[str, Any] = {}
    if handler is None and table.model is Job:
        waiting = Job._base_manager.using(table.alias).filter(status=Status.QUEUED)
        # Tasks in modules that nothing has imported yet.
        for type in waiting.order_by().values_list("type", flat=True).distinct():
            find(type)
        wanted["types"] = list(handlers())
    elif handler is None:
        stages = _tasks(table)
        wanted["stages"] = None if None in stages else [*stages, *handlers(table.model)]
    runs = claim_group(table, 1, **wanted)
    return runs[0].lease if runs else None


def _handler_of(lease: Lease) -> Handler:
    table = holding_of(lease).table
    known = handlers(table.model)
    if table.model is Job or kind_of(lease) in known:
        return known[kind_of(lease)]
    tasks = _tasks(table)
    task = tasks.get(holding_of(lease).stage) or tasks[None]
    function: Handler = task.run
    return function


def _tasks(table: JobTable) -> Mapping[str | None, Any]:
    from jobreaper.celery.declared import tasks_by_stage

    return tasks_by_stage(table.model)
