"""The end of one lease: sends the verb's statement and tells the lease the answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from django.db import DatabaseError, Error, ProgrammingError, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import RawSQL
from django.dispatch import Signal

from jobreaper import signals, sql
from jobreaper.db import (
    Depth,
    close_left_open,
    fetch,
    in_transaction,
    in_words,
    is_elsewhere,
    is_open,
    may_be_a_rows_fault,
    moved,
    on_commit,
    retrying,
    session_of,
    storable,
)
from jobreaper.exceptions import LeaseClosed, LeaseLost, OpenTransaction
from jobreaper.protocol import heartbeat
from jobreaper.protocol.holding import Holding
from jobreaper.protocol.phases import Phase
from jobreaper.states import EventType

logger = logging.getLogger("jobreaper.leases")

T = TypeVar("T")

LONGEST_CODE: Final = 200

_IN_SESSION: Final = sql.render("fragments/in_session").replace("%(session)s", "%s")

# The signal of each event that ends an attempt.
SIGNALS: Final[Mapping[str, Signal]] = {
    EventType.JOB_FINISHED: signals.job_finished,
    EventType.JOB_RETRIED: signals.job_retried,
    EventType.JOB_FAILED: signals.job_failed,
    EventType.JOB_RELEASED: signals.job_released,
}

_EVENTS: Final = {
    "finish": (EventType.JOB_FINISHED,),
    "fail": (EventType.JOB_RETRIED, EventType.JOB_FAILED),
    "release": (EventType.JOB_RELEASED,),
    "withdraw": (EventType.JOB_RELEASED,),
}


def end(holding: Holding, verb: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Send ``verb`` for one lease and return the event that it wrote.

    Raises:
        LeaseLost: the lease is lost; nothing was written.
        LeaseClosed: it has ended already, or another thread is ending it.
    """
    connection = holding.table.connection(holding.alias)
    if not holding.begin_to_end():
        raise refusal(holding, verb)
    try:
        event = retrying(
            connection,
            lambda tried: in_its_session(
                holding, connection, lambda: send(holding, connection, verb, params, tried)
            ),
        )
        _close(holding, connection, verb, event)
        if verb == "finish":
            forget_states(connection, [holding])
    finally:
        holding.not_ended()
    return event


class Elsewhere(Exception):
    """A statement wrote nothing, because the session is not the lease's."""


def in_its_session(holding: Holding, connection: BaseDatabaseWrapper, send: Callable[[], T]) -> T:
    """Call ``send``, and again in the session of the lease's claim if the connection has moved on
    since, for example to another schema: there, it found nothing, or not even the table.
    """
    try:
        return send()
    except Elsewhere:
        pass
    except ProgrammingError:
        # It has broken a transaction of the caller.
        if in_transaction(connection) or not is_elsewhere(connection, holding.session):
            raise
    nested = in_transaction(connection)
    with (
        transaction.atomic(using=connection.alias),
        moved(connection, session_of(connection), holding.session, put_back=nested),
    ):
        try:
            return send()
        except LeaseLost as error:
            # Its event is written.
            lost = error
    raise lost


def forget_states(connection: BaseDatabaseWrapper, finished: Iterable[Holding]) -> None:
    """Delete what jobs of one table have saved, now that they are finished. If that is not
    possible, a prune does so.
    """
    left = [holding for holding in finished if holding.has_state]
    if not left:
        return
    table = left[0].table
    params = {"ids": [holding.key for holding in left], "session": left[0].session}
    try:
        fetch(connection, table.statement("forget_states"), params)
    except Error as error:
        if in_transaction(connection):
            raise
        logger.info("%s: saved states were not deleted: %s", table.name, in_words(error))


def refusal(holding: Holding, verb: str) -> LeaseClosed:
    """Return the error for a verb after the end."""
    is_ending = holding.phase is Phase.ENDING
    done = "is ending it in another thread" if is_ending else "has ended it already"
    return LeaseClosed(f"cannot {verb} {holding!r}: this worker {done}")


def send(
    holding: Holding,
    connection: BaseDatabaseWrapper,
    verb: str,
    params: Mapping[str, Any],
    tried_before: bool,
) -> dict[str, Any]:
    """Send the verb's statement and return the event that it wrote, or the event of an earlier try
    whose answer was lost.
    """
    if holding.is_superseded:
        # The statement would end the later lease.
        return reject(holding, connection, verb, tried_before=False)
    written = fetch(
        connection,
        holding.table.statement(verb),
        {
            **params,
            "id": holding.key,
            "epoch": holding.epoch,
            "worker": holding.worker,
            "waited_ms": holding.waited_ms,
            "session": holding.session,
            "report": holding.report,
        },
    )
    if written:
        event: dict[str, Any] = json.loads(written[0][0])
        return event
    return reject(holding, connection, verb, tried_before)


def reject(
    holding: Holding, connection: BaseDatabaseWrapper, verb: str, tried_before: bool
) -> dict[str, Any]:
    """Record that a statement left out the lease because it is no longer ours. If an earlier try of
    the same verb was committed, return the event of that try.

    Raises:
        LeaseLost: it is lost.
        Elsewhere: it is not lost, the connection has moved on. See ``in_its_session()``.
    """
    params = {
        "id": holding.key,
        "epoch": holding.epoch,
        "verb": verb,
        "worker": holding.worker,
        "stage": holding.stage,
        "attempt": holding.attempt,
        "tried_before": tried_before,
        "ended_by": [str(event) for event in _EVENTS.get(verb, ())],
        "session": holding.session,
    }
    status = epoch = carried_out = None
    is_in_session = True
    try:
        [(status, epoch, carried_out, is_in_session)] = fetch(
            connection, holding.table.statement("reject"), params
        )
    except DatabaseError as error:
        # It is lost, whether this can be recorded or not.
        is_broken = in_transaction(connection) or not may_be_a_rows_fault(connection, error)
        if tried_before or is_broken or is_elsewhere(connection, holding.session):
            raise
        logger.error("cannot record a rejected write: %s", in_words(error))
    if not is_in_session:
        raise Elsewhere
    if carried_out is not None:
        event: dict[str, Any] = json.loads(carried_out)
        return event
    signals.stale_write_rejected.send_robust(
        holding.table.model, lease=holding.lease, verb=verb, status=status, epoch=epoch
    )
    heartbeat.heart.remove(holding)
    raise holding.rejected(verb, status, epoch)


def _close(
    holding: Holding, connection: BaseDatabaseWrapper, verb: str, event: dict[str, Any]
) -> None:
    def announce() -> None:
        heartbeat.heart.remove(holding)
        SIGNALS[event["type"]].send_robust(
            holding.table.model, lease=holding.lease, details=event["details"]
        )

    def close() -> None:
        holding.ended(verb)
        announce()

    if connection.in_atomic_block:
        holding.ended_if_committed(verb, close)
        on_commit(connection, close)
    elif is_open(connection):
        # Django does not know this transaction, and nothing reports its end.
        holding.ended_if_committed(verb)
        announce()
    else:
        close()


class Fence:
    """What ``LeasedJob.save()`` needs from the lease of its job."""

    __slots__ = ("alias", "holding")

    def __init__(self, holding: Holding) -> None:
        self.holding = holding
        self.alias = holding.alias

    def save_job(self, using: str, save: Callable[[], object]) -> None:
        """Call ``save``, which writes the job, in a transaction in which the lease is still ours.

        It is called only once, because it sends the caller's signals.

        Raises:
            LeaseLost: the epoch has increased since the claim; nothing was written.
        """
        holding = self.holding
        rows = holding.table.model._base_manager.using(using).select_for_update(no_key=True)
        # After the end, nobody has the job, and its epoch is still that of this lease.
        ours = models.Q(locked_by=holding.worker) | models.Q(locked_by=None)
        in_session = RawSQL(_IN_SESSION, [holding.session], models.BooleanField())  # noqa: S611
        held = rows.filter(in_session, ours, pk=holding.pk, lease_epoch=holding.epoch)
        connection = holding.table.connection(using)
        is_held = False

        def save_once(_: bool) -> None:
            nonlocal is_held
            with transaction.atomic(using=using):
                is_held = not holding.is_superseded and bool(list(held.values_list("pk")))
                if is_held:
                    save()

        def save_or_reject() -> None:
            retrying(connection, save_once, not_after=lambda: is_held)
            if not is_held:
                reject(holding, connection, "save", tried_before=False)

        in_its_session(holding, connection, save_or_reject)


def undo_left_open(holding: Holding, before: Mapping[str, Depth]) -> list[str]:
    """Roll back transactions on this thread's connections that were started and not ended since
    ``before``, as ``db.close_left_open()`` does, and return their aliases. A lease that was ended
    there is open again.
    """
    undone = close_left_open(before)
    if holding.phase is Phase.CLOSING and holding.alias in undone:
        holding.end_undone()
        heartbeat.heart.add(holding)
    return undone


def refuse_left_open(holding: Holding, who: str, before: Mapping[str, Depth]) -> None:
    """Roll back transactions that ``who`` has left open, as ``undo_left_open()`` does.

    Raises:
        OpenTransaction: there was such a transaction.
    """
    if undone := undo_left_open(holding, before):
        raise OpenTransaction(
            f"{who} left a transaction open on {', '.join(undone)}, and what it wrote there "
            "is undone"
        )


def failure(
    code_or_exception: str | BaseException, reason: str | None = None
) -> tuple[str, str | None]:
    """Return an attempt's ``fail_code`` and ``fail_reason`` in a form that the database
    can store. The reason is a database error's first line, because the others quote rows.
    """
    code: str | BaseException = code_or_exception
    why: object = reason
    if isinstance(code_or_exception, BaseException):
        code = type(code_or_exception).__qualname__
        why = code_or_exception if reason is None else reason
    return storable(code)[:LONGEST_CODE], None if why is None else storable(why)
