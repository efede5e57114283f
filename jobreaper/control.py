"""The operator's half: requeue, fail or cancel jobs by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from django.db import IntegrityError, models
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import signals
from jobreaper.db import fetch, on_commit, retrying, storable, timeouts
from jobreaper.states import EventType, Status, sources
from jobreaper.tables import table_of

# A person is waiting: a row that a long transaction has locked is reported, not waited for.
LOCK_TIMEOUT_SEC: Final = 5.0
STATEMENT_TIMEOUT_SEC: Final = 30.0

UNIQUE_VIOLATION: Final = "23505"
# Each but the last may find that another key was taken meanwhile.
KEY_TRIES: Final = 5


def requeue(
    model: type[models.Model], pks: Iterable[object], *, by: str, reason: str | None = None
) -> list[Any]:
    """Give processing, failed and cancelled jobs back to the queue, due at once and with all their
    attempts, and return the keys of those that were changed.

    A worker that is still running one has lost its lease. ``by`` names the operator.
    """
    return _change(model, pks, Status.QUEUED, EventType.ADMIN_REQUEUED, by, reason)


def fail(
    model: type[models.Model],
    pks: Iterable[object],
    *,
    by: str,
    reason: str | None = None,
    code: str = "failed_by_hand",
) -> list[Any]:
    """Fail queued and processing jobs for good, and return the keys of those that were changed."""
    return _change(model, pks, Status.FAILED, EventType.ADMIN_FAILED, by, reason, code)


def cancel(
    model: type[models.Model],
    pks: Iterable[object],
    *,
    by: str,
    reason: str | None = None,
    event: EventType = EventType.ADMIN_CANCELLED,
) -> list[Any]:
    """Cancel queued and processing jobs, and return the keys of those that were changed.

    A worker that is running one is told at its next beat and cannot finish it. ``event`` is
    ``JOB_CANCELLED`` where a program cancels and no operator.
    """
    return _change(model, pks, Status.CANCELLED, event, by, reason)


def cancel_queued(
    model: type[models.Model], pks: Iterable[object], *, by: str, reason: str
) -> list[Any]:
    """Cancel those of the jobs that are queued, on a program's account, and return their keys."""
    return _change(
        model, pks, Status.CANCELLED, EventType.JOB_CANCELLED, by, reason, among=[Status.QUEUED]
    )


def _change(
    model: type[models.Model],
    pks: Iterable[object],
    target: Status,
    event: EventType,
    by: str,
    reason: str | None,
    code: str | None = None,
    among: Iterable[Status] | None = None,
) -> list[Any]:
    table = table_of(model)
    connection = table.connection()
    allowed = among or sources(target)
    details = {"by": storable(by), "reason": None if reason is None else storable(reason)}
    changed = _changed(
        connection,
        table.statement("change_by_hand"),
        {
            **details,
            "ids": [table.prepare_pk(pk) for pk in pks],
            "sources": [word for source in allowed for word in table.words[source]],
            "target": table.word(target),
            "event": event.value,
            "fail_code": code,
        },
    )
    for pk in changed:
        announce = partial(
            signals.job_changed_by_hand.send_robust,
            table.model,
            table=table.name,
            pk=pk,
            event=event,
            **details,
        )
        on_commit(connection, announce)
    return changed


def _changed(
    connection: BaseDatabaseWrapper, statement: str, params: Mapping[str, Any]
) -> list[Any]:
    """Send the change and return the keys of the jobs changed."""
    for tries_left in reversed(range(KEY_TRIES)):
        try:
            return _sent(connection, statement, params)
        except IntegrityError as error:
            # A transaction that was not to be seen until its end has taken a job's dedupe key.
            if not tries_left or getattr(error.__cause__, "sqlstate", None) != UNIQUE_VIOLATION:
                raise
    return []


def _sent(connection: BaseDatabaseWrapper, statement: str, params: Mapping[str, Any]) -> list[Any]:
    """Send the change as often as it takes to get it on its way. Then no more: it may have been
    carried out, and a job that was requeued may be in a worker's hands by now.
    """
    on_its_way = False

    def send(_: bool) -> list[Any]:
        nonlocal on_its_way
        with timeouts(connection, lock_sec=LOCK_TIMEOUT_SEC, statement_sec=STATEMENT_TIMEOUT_SEC):
            on_its_way = True
            return [pk for (pk,) in fetch(connection, statement, params)]

    return retrying(connection, send, not_after=lambda: on_its_way)
