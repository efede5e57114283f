"""For operators: requeue, run now, fail or cancel jobs by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from django.db import DatabaseError, IntegrityError, models
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import signals, values
from jobreaper.db import fetch, may_be_a_rows_fault, on_commit, retrying, storable, timeouts
from jobreaper.states import EventType, Status, sources
from jobreaper.tables import table_of

# A person is waiting, so a row that a long transaction has locked is reported.
LOCK_TIMEOUT_SEC: Final = 5.0
STATEMENT_TIMEOUT_SEC: Final = 30.0

UNIQUE_VIOLATION: Final = "23505"
# Each try but the last may find that another key was taken meanwhile.
KEY_TRIES: Final = 5

Row = tuple[Any, ...]


def requeue(
    model: type[models.Model], pks: Iterable[object], *, by: str, reason: str | None = None
) -> list[Any]:
    """Put processing, failed and cancelled jobs back in the queue, due at once and with all their
    attempts, and return the keys of the changed jobs.

    A worker that is still running such a job has lost its lease. ``by`` names the operator.
    """
    return _change(model, pks, Status.QUEUED, EventType.ADMIN_REQUEUED, by, reason)


def run_now(
    model: type[models.Model], pks: Iterable[object], *, by: str, reason: str | None = None
) -> list[Any]:
    """Make queued jobs due at once that are scheduled for later or wait for their next attempt, and
    return the keys of the changed jobs. Their attempts stay as they are. ``by`` names the operator.
    """
    return _apply("run_now", model, pks, EventType.ADMIN_RUN_NOW, by, reason, {})


def fail(
    model: type[models.Model],
    pks: Iterable[object],
    *,
    by: str,
    reason: str | None = None,
    code: str = "failed_by_hand",
) -> list[Any]:
    """Fail queued and processing jobs permanently, and return the keys of the changed jobs."""
    return _change(model, pks, Status.FAILED, EventType.ADMIN_FAILED, by, reason, code)


def cancel(
    model: type[models.Model],
    pks: Iterable[object],
    *,
    by: str,
    reason: str | None = None,
    event: EventType = EventType.ADMIN_CANCELLED,
) -> list[Any]:
    """Cancel queued and processing jobs, and return the keys of the changed jobs.

    A worker that is running such a job is told at its next heartbeat and cannot finish it. Pass
    ``JOB_CANCELLED`` as ``event`` if a program cancels, not an operator.
    """
    return _change(model, pks, Status.CANCELLED, event, by, reason)


def cancel_queued(
    model: type[models.Model], pks: Iterable[object], *, by: str, reason: str
) -> list[Any]:
    """Cancel the queued ones of the jobs on behalf of a program, and return their keys."""
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
    params = {
        "sources": [word for source in among or sources(target) for word in table.words[source]],
        "target": table.word(target),
        "fail_code": code,
    }
    return _apply("change_by_hand", model, pks, event, by, reason, params)


def _apply(
    statement: str,
    model: type[models.Model],
    pks: Iterable[object],
    event: EventType,
    by: str,
    reason: str | None,
    params: Mapping[str, Any],
) -> list[Any]:
    """Send a statement of ``table`` that changes jobs, and announce each change."""
    table = table_of(model)
    connection = table.connection()
    details = {"by": storable(by), "reason": None if reason is None else storable(reason)}
    keys = {table.prepare_pk(pk): pk for pk in values.several(pks, "pks")}
    rows, refused = _changed_or_refused(
        connection,
        table.statement(statement),
        {**params, **details, "ids": list(keys), "event": event.value},
    )
    changed = [table.read_pk(*row) for row in rows]
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
    for key, error in refused.items():
        signals.change_refused.send_robust(
            table.model, table=table.name, pk=keys[key], event=event, by=details["by"], error=error
        )
    return changed


def _changed_or_refused(
    connection: BaseDatabaseWrapper, statement: str, params: Mapping[str, Any]
) -> tuple[list[Row], dict[Any, DatabaseError]]:
    """Send the change. If the database refuses it for many, a row may be the reason: then each half
    is changed with its own statement. Return a row for each job changed, and the keys of refused
    rows with the error.

    Raises:
        django.db.Error: the reason is not a row, or nothing but refused rows was chosen.
    """
    ids = params["ids"]
    try:
        return _changed(connection, statement, params), {}
    except DatabaseError as error:
        if len(ids) < 2 or not may_be_a_rows_fault(connection, error):
            raise
    changed: list[Row] = []
    refused: dict[Any, DatabaseError] = {}
    half = len(ids) // 2
    for some in (ids[:half], ids[half:]):
        try:
            done, left = _changed_or_refused(connection, statement, {**params, "ids": some})
        except DatabaseError as error:
            if not may_be_a_rows_fault(connection, error):
                raise
            done, left = [], dict.fromkeys(some, error)
        changed += done
        refused |= left
    if len(refused) == len(ids):
        raise next(iter(refused.values()))
    return changed, refused


def _changed(
    connection: BaseDatabaseWrapper, statement: str, params: Mapping[str, Any]
) -> list[Row]:
    """Send the change and return a row for each job changed."""
    for tries_left in reversed(range(KEY_TRIES)):
        try:
            return _sent(connection, statement, params)
        except IntegrityError as error:
            # A transaction that was not visible until it ended has taken a job's dedupe key.
            if not tries_left or getattr(error.__cause__, "sqlstate", None) != UNIQUE_VIOLATION:
                raise
    return []


def _sent(connection: BaseDatabaseWrapper, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Send the change until it reaches the server, then not again: it may have been carried out,
    and a worker may already be running a job that was requeued.
    """
    on_its_way = False

    def send(_: bool) -> list[Row]:
        nonlocal on_its_way
        with timeouts(connection, lock_sec=LOCK_TIMEOUT_SEC, statement_sec=STATEMENT_TIMEOUT_SEC):
            on_its_way = True
            return fetch(connection, statement, params)

    return retrying(connection, send, not_after=lambda: on_its_way)
