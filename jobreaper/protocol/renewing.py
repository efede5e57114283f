"""Renewing the leases of one table, and telling their holders the result."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from django.db import DatabaseError, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.errors import ConnectionTimeout

from jobreaper import conf, signals
from jobreaper.db import (
    ANY_SESSION,
    borrowed,
    ended_session,
    fetch_within,
    in_words,
    may_be_a_rows_fault,
)
from jobreaper.identity import local_clock
from jobreaper.protocol import progress
from jobreaper.protocol.holding import Beat, Holding, holding_of
from jobreaper.tables import JobTable

# If a migration has locked a table, the heartbeats of other tables must not wait for it.
LOCK_TIMEOUT_SEC: Final = 0.5
STATEMENT_TIMEOUT_SEC: Final = 10.0
# How many leases one statement renews: see _parts().
MOST_AT_ONCE: Final = 100


# How leases of one table and session are renewed; the text is the session.
Send = Callable[[BaseDatabaseWrapper, JobTable, Sequence[Holding], str], list[Beat]]


def beat(
    connection: BaseDatabaseWrapper,
    table: JobTable,
    leases: Sequence[Any],
    session: str | None = None,
) -> list[Beat]:
    """Renew ``leases`` of one table and session, as users see them or their holdings, tell each of
    them the result, and return the results in the order of ``leases``.
    """
    held = [lease if isinstance(lease, Holding) else holding_of(lease) for lease in leases]
    session = session or (held[0].session if held else ANY_SESSION)
    return _beat(partial(fetch_within, connection), table, held, session) or []


def _beat(
    fetch: Callable[..., list[tuple[Any, ...]] | None],
    table: JobTable,
    leases: Sequence[Holding],
    session: str,
) -> list[Beat] | None:
    found: dict[Holding, Beat] = {}
    for part in _parts(leases):
        beats = _beat_part(fetch, table, part, session)
        if beats is None:
            return None
        found.update(zip(part, beats, strict=True))
    return [found[lease] for lease in leases]


def _parts(leases: Sequence[Holding]) -> list[Sequence[Holding]]:
    """Return ``leases`` as they are renewed together.

    An update is cheap if the new version of the row fits onto its page, and a page has no room for
    new versions of all its rows: the old ones make room only after a commit. Jobs that were claimed
    together are on the same pages, so the parts are drawn at random, and anew each time.
    """
    count = max(1, math.ceil(len(leases) / MOST_AT_ONCE))
    if count == 1:
        return [leases]
    mixed = random.sample(leases, len(leases))
    return [mixed[place::count] for place in range(count)]


def _beat_part(
    fetch: Callable[..., list[tuple[Any, ...]] | None],
    table: JobTable,
    leases: Sequence[Holding],
    session: str,
) -> list[Beat] | None:
    sent_at = local_clock()
    reports = progress.to_carry(table.tracks_progress, leases)
    statement, carried = progress.statement_of(reports)
    rows = fetch(
        table.statement(statement),
        {
            "ids": [lease.key for lease in leases],
            "epochs": [lease.epoch for lease in leases],
            "workers": [lease.worker for lease in leases],
            "policies": conf.settings().policies_json,
            **carried,
        },
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=STATEMENT_TIMEOUT_SEC,
        session=session,
    )
    if rows is None:
        return None
    beats = [Beat(*row) for row in rows]
    for lease, outcome in zip(leases, beats, strict=True):
        lease.beaten(outcome, sent_at)
    progress.carried(reports, leases, beats)
    return beats


def renew(
    connect: Callable[[], BaseDatabaseWrapper],
    alias: str,
    table: JobTable,
    held: Sequence[Holding],
    send: Send | None = None,
) -> bool:
    """Renew leases of one table and session, and return whether each was renewed or is gone. If the
    database refuses it for many, a row may be the reason: then each half is renewed by itself.
    """
    send = send or _beat_awake
    try:
        beats = send(connect(), table, held, held[0].session)
    # A problem with one table must never stop the heartbeats of the others.
    except Exception as error:
        is_a_rows_fault = _is_a_rows_fault(connect, table, held[0].session, send, error)
        if is_a_rows_fault and len(held) > 1:
            half = len(held) // 2
            halves = (held[:half], held[half:])
            parts = [renew(connect, alias, table, part, send) for part in halves]
            return all(parts)
        if not is_a_rows_fault:
            with suppress(Exception):
                connections[alias].close()
        _fail(error, alias, table, held)
        # Such a row is not worth another try before the next heartbeat.
        return is_a_rows_fault
    return all(b.remaining_sec is not None or not b.held for b in beats)


def _is_a_rows_fault(
    connect: Callable[[], BaseDatabaseWrapper],
    table: JobTable,
    session: str,
    send: Send,
    error: Exception,
) -> bool:
    """Return whether the heartbeat that raised ``error`` succeeds for no leases."""
    try:
        is_refused = isinstance(error, DatabaseError) and may_be_a_rows_fault(connect(), error)
        return is_refused and send(connect(), table, [], session) == []
    except Exception:
        return False


def _fail(error: Exception, alias: str, table: JobTable, held: Sequence[Holding]) -> None:
    why = in_words(error)
    for lease in held:
        lease.missed(why)
    signals.heartbeat_failed.send_robust(
        table.model, alias=alias, table=table.name, error=error, leases=len(held)
    )


def beat_between(
    obstacle: Exception,
    connection: BaseDatabaseWrapper,
    table: JobTable,
    held: Sequence[Holding],
    session: str,
) -> list[Beat]:
    """Send a heartbeat over a session of another thread, because of ``obstacle``.

    Raises:
        Exception: it is ``obstacle`` if each session is in use, or the error of one.
    """
    if isinstance(obstacle.__cause__, ConnectionTimeout):
        # No other session gets an answer either.
        raise obstacle
    for over in borrowed.sessions(connection.alias):
        try:
            with connection.wrap_database_errors:
                beats = _beat(partial(borrowed.fetch_between, over), table, held, session)
        except Error as error:
            obstacle = error
        else:
            if beats is not None:
                return beats
    raise obstacle


def _beat_awake(
    connection: BaseDatabaseWrapper, table: JobTable, held: Sequence[Holding], session: str
) -> list[Beat]:
    """Send a heartbeat, and again if the session has ended since the last one, for example because
    of a limit on idle sessions.
    """
    was_open = connection.connection is not None
    try:
        return beat(connection, table, held, session)
    except Error as error:
        if not (was_open and ended_session(connection, error)):
            raise
    connection.close()
    return beat(connection, table, held, session)
