"""``LeasedTask``: a Celery task that runs under a lease.

A message carries only the job's id. The row decides whether the job may run, so a message that is
late, lost or delivered fifty times does no harm.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self, TypeVar

from celery import Task
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate
from django.apps import apps
from django.db import Error, models, transaction

from jobreaper.celery import shutdown
from jobreaper.celery.kept import is_called, kept_connection
from jobreaper.control import by_hand
from jobreaper.db import (
    Depth,
    close_left_open,
    details_left_out,
    in_transaction,
    in_words,
    is_lost,
    open_transactions,
    without_details,
)
from jobreaper.exceptions import ConfigurationError, LeaseLost
from jobreaper.identity import forks_end_here
from jobreaper.protocol.claim import claim
from jobreaper.protocol.ending import Fence, refuse_left_open, undo_left_open
from jobreaper.protocol.holding import holding_of
from jobreaper.protocol.interrupting import interrupting
from jobreaper.protocol.lease import Lease
from jobreaper.queue.handlers import refuse_unrun
from jobreaper.states import EventType
from jobreaper.tables import JobTable, table_of

T = TypeVar("T")

logger = logging.getLogger(__name__)

# A busy main process takes a while to notice its own signal.
WORD_OF_SHUTDOWN_SEC: Final = 1.0


class LeasedTask(Task):  # type: ignore[type-arg]
    """The base class of a task that runs the jobs of one model, or of one of its stages.

    ::

        @shared_task(base=LeasedTask, model="media.Job", stage="clip")
        def render(job, lease): ...

    Options, given to the decorator:

    ``model``
        the job table's model, or its label.
    ``stage``
        the stage it handles; without one, every stage of the model that no other task handles.
    ``result_field``
        a field of the model that takes what the function returns, in the transaction that finishes
        the job.
    ``interrupt``
        raise ``LeaseLost`` in the middle of the function when the lease is lost, where the pool
        runs each task in a thread of its own (prefork, threads, solo).

    ``docs/celery.md`` says how each ending of the function ends the job.
    """

    abstract = True
    Request = "jobreaper.celery.request:LeasedRequest"

    model: type[models.Model] | str | None = None
    stage: str | None = None
    result_field: str | None = None
    interrupt = False

    # The row is the job. Keeping the message until the job ends would gain nothing, and Redis would
    # deliver it again after its visibility timeout.
    acks_late = False
    reject_on_worker_lost = False
    ignore_result = True
    # The function receives (job, lease); its message contains only the job's id.
    typing = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Hide ``before_start`` from Celery, which would call it before the claim: an exception in
        it would not count, and the job would be sent again forever.
        """
        task = super().__new__(cls, *args, **kwargs)
        task.before_start = _called_under_the_lease  # type: ignore[assignment]
        return task

    @classmethod
    def job_model(cls) -> type[models.Model]:
        """Return the model whose jobs this task runs.

        Raises:
            ConfigurationError: the task was declared without one, or there is no such model.
        """
        if cls.model is None:
            raise ConfigurationError(f"task {cls.name} needs model=… beside base=LeasedTask")
        if not isinstance(cls.model, str):
            return cls.model
        try:
            return apps.get_model(cls.model)
        except (LookupError, ValueError) as error:
            raise ConfigurationError(f"task {cls.name}: no model {cls.model!r}: {error}") from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Claim the job whose id is the message's one argument, run the function, end the job."""
        if len(args) != 1 or kwargs:
            raise TypeError(f"{self.name} takes one argument, the job's id: apply_async(args=[pk])")
        request = self.request
        before: Mapping[str, Depth] = {}
        if is_called(request):
            before = open_transactions()
        else:
            close_left_open()
        model = self.job_model()
        table = table_of(model)
        with kept_connection(self, request, table.alias) as kept:
            lease = _on_a_sound_session(table, partial(claim, model, args[0]))
            if lease is None:
                logger.info("%s refused %s: it is not queued, not due or gone", self.name, args[0])
                return None
            holding = holding_of(lease)
            holding.is_stopping = shutdown.has_begun
            with lease, _ended_by(self, lease, before):
                with (
                    kept.lent(holding),
                    interrupting(holding) if self.interrupt else nullcontext(),
                    forks_end_here(),
                    details_left_out(),
                ):
                    if not request.called_directly:
                        type(self).before_start(self, str(request.id), args, kwargs)
                    result = self.run(lease.job, lease)
                refuse_unrun(self.name, result)
                refuse_left_open(holding, self.name, before)
                if not lease.closed:
                    _on_a_sound_session(table, partial(self._finish, lease, result))
                return result

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """Raise ``Retry``, as Celery does; the job's row replaces the new message.

        ``eta`` or ``countdown`` (seconds) replaces the stage's backoff. The row's ``max_attempts``
        limits the attempts, so ``max_retries`` is not read.
        """
        when = eta if eta is not None else countdown
        error = Retry("retried", exc=without_details(exc), when=when)  # type: ignore[arg-type]
        if throw:
            raise error from exc
        return error

    def _finish(self, lease: Lease, result: Any) -> None:
        if self.result_field is None:
            lease.finish()
            return
        alias = holding_of(lease).alias
        with transaction.atomic(using=alias):
            setattr(lease.job, self.result_field, result)
            lease.job.save(using=alias, update_fields=[self.result_field])
            lease.finish()


def drop_left_open(task: Task[..., Any]) -> None:
    """Close the connections that another task of this worker has left in a transaction: the writes
    of ``task`` would be rolled back with it.
    """
    if not is_called(task.request):
        close_left_open()


def _called_under_the_lease(*args: Any) -> None: ...


@contextmanager
def _ended_by(task: LeasedTask, lease: Lease, before: Mapping[str, Depth]) -> Iterator[None]:
    """End the lease according to the exception that leaves the block, and let the exception
    propagate.

    A task that is called in its caller's transaction, as eager tasks can be, does not touch it.
    """
    try:
        yield
    except BaseException as error:
        cause = error.exc if isinstance(error, Retry) and error.exc is not None else error
        if isinstance(cause, LeaseLost) and lease.lost:
            # A cancelled or reaped job is not a failure of the task: its events say what happened.
            logger.info("%s stopped: %s", task.name, cause)
            raise Ignore from error
        # In a transaction that the function left open, the end would be rolled back too.
        undo_left_open(holding_of(lease), before)
        with holding_of(lease).failing_by(cause):
            went_back = not (lease.closed or lease.lost) and _end(lease, error)
        if isinstance(error, Retry) and error.exc is not None and not went_back:
            raise error.exc from error
        if not (isinstance(error, Exception) or _ends_more_than_the_job(error)):
            raise RuntimeError(f"{task.name} raised {type(error).__qualname__}") from error
        raise


def _end(lease: Lease, error: BaseException) -> bool:
    """End a lease according to the exception of its function. Return whether the job went back to
    the queue.
    """
    table = holding_of(lease).table
    for end in (_end_as_said, Lease.fail):
        try:
            return _on_a_sound_session(table, partial(end, lease, error))
        except LeaseLost:
            return False
        except Exception as trouble:
            name, kind = f"{table.name} {lease.pk}", type(error).__qualname__
            logger.error("%s was not ended by its %s: %s", name, kind, in_words(trouble))
            if isinstance(trouble, Error):
                break  # the lease runs out, and the reaper does the rest
    return False


def _on_a_sound_session(table: JobTable, send: Callable[[], T]) -> T:
    """Call ``send``, and again on a new connection if the database refused it: the task's function,
    or another task before it, may have changed the session's role or search_path, or made it
    read-only.
    """
    try:
        return send()
    except Error as error:
        connection = table.connection()
        if in_transaction(connection) or is_lost(connection):
            raise
        logger.info("on a new connection, since it may be the session: %s", in_words(error))
        connection.close()
    return send()


def _end_as_said(lease: Lease, error: BaseException) -> bool:
    if isinstance(error, Retry):
        return lease.fail(error.exc or error, delay_sec=_seconds_until(error.when))
    if isinstance(error, Ignore):
        model = type(lease.job)
        Fence(holding_of(lease)).save_job(
            holding_of(lease).alias,
            lambda: by_hand.cancel(
                model, [lease.pk], by=lease.worker, event=EventType.JOB_CANCELLED
            ),
        )
        return False
    if isinstance(error, Reject):
        said: Any = error  # celery-types does not declare these attributes
        return lease.fail("Reject", str(said.reason), retry=bool(said.requeue))
    if not _was_told_to_stop(error):
        # Even after the function's own sys.exit(): if it were released, the job would run forever.
        return lease.fail(error)
    # Its own process kills a greenlet, and has said why before.
    if not shutdown.has_begun(0 if _kills_greenlet(error) else WORD_OF_SHUTDOWN_SEC):
        # Only this child was killed, perhaps because of the job: the main process notices and
        # counts it, or has revoked the job and cancels it.
        return False
    lease.release()
    return True


def _was_told_to_stop(error: BaseException) -> bool:
    """Return whether a signal ends this process, or another greenlet ends this one, and not the
    function's own code.
    """
    if isinstance(error, WorkerShutdown | WorkerTerminate) or _kills_greenlet(error):
        return True
    # billiard sets this in the handler that raises SystemExit in a pool's child.
    from billiard.common import _should_have_exited  # type: ignore[attr-defined]

    return isinstance(error, SystemExit) and bool(_should_have_exited[0])


def _kills_greenlet(error: BaseException) -> bool:
    greenlet: Any = sys.modules.get("greenlet")
    return greenlet is not None and isinstance(error, greenlet.GreenletExit)


def _ends_more_than_the_job(error: BaseException) -> bool:
    """Return whether the worker must see ``error``, which is not an ``Exception``. Any other one
    would end its process.
    """
    gevent: Any = sys.modules.get("gevent")
    is_time_limit = gevent is not None and isinstance(error, gevent.Timeout)
    return is_time_limit or _was_told_to_stop(error)


def _seconds_until(when: Any) -> float | None:
    if isinstance(when, datetime):
        moment = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(0.0, (moment - datetime.now(UTC)).total_seconds())
    return None if when is None else max(0.0, float(when))
