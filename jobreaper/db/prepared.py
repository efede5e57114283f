"""Statements that a session prepares, so that the server plans them once and not each time.

The server plans a statement of the protocol for longer than it runs it. Only sessions that
``prepare_on()`` names prepare anything: those that last, and on which no pooler stands in between,
since a prepared statement belongs to one server process.

A plan that is kept was made for the table as it was. In an empty one, reading all of it is the
quickest way to find the next job, and still the plan when a hundred thousand jobs have arrived,
until the table is analyzed. So no plan is kept for longer than ``PLANS_SEC``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Connection, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper

from jobreaper.identity import local_clock

# A statement is prepared when it is sent once more than this.
THRESHOLD: Final = 2

# After this time, the server plans everything anew, which takes it about as long as one statement
# that is not prepared.
PLANS_SEC: Final = 10.0

# The server plans each time if it cannot tell how few rows a LIMIT allows: it expects a tenth of
# them all, and a plan for one row is cheaper. So up to this number, it is told. Each number is a
# statement of its own, and that of a claim takes 0.6 MB of the server's memory.
FEW_ROWS: Final = 4

# The session no longer has the statement, as after DISCARD ALL, or a migration has changed what it
# returns. Nothing was done.
FORGOTTEN: Final = ("26000", "0A000")
# The server cannot tell the type of a parameter that is not part of the text. Nothing was done.
UNTYPED: Final = "42"

_PARAMETER: Final = re.compile(r"%(?:\((\w+)\)s|(%))")
_LIMIT: Final = re.compile(r"\bLIMIT %\((\w+)\)s")

# What a cursor knows from its first statement on: where it has changed, another cursor is used.
_READ_BY: Final = (b"client_encoding", b"TimeZone", b"DateStyle")

# A cursor keeps what it has read until it reads again, so one that has read much is not kept.
LARGEST_KEPT: Final = 10_000
MOST_CURSORS: Final = 50


class _Prepared:
    """A session that prepares statements.

    It has a cursor for each statement: finding out how parameters are written and rows are read
    takes as long as sending the statement, and a cursor does so only once.
    """

    __slots__ = ("cursors", "has_forgotten", "planned_at", "session", "untyped")

    def __init__(self, session: Connection[Any]) -> None:
        self.session = session
        self.cursors: dict[object, RawCursor[Any]] = {}
        # Whether its statements are gone; the driver still counts on them.
        self.has_forgotten = False
        # Statements with a parameter whose type the server cannot tell.
        self.untyped: set[bytes] = set()
        # When its oldest plan may have been made.
        self.planned_at = local_clock()

    def rows_of(
        self, text: bytes, params: list[Any], adapt: Callable[[Any], object]
    ) -> list[tuple[Any, ...]]:
        self._forget_old_plans()
        status = self.session.pgconn.parameter_status
        key = (text, adapt, *map(status, _READ_BY))
        # If it raises an error, it is not kept.
        cursor = self.cursors.pop(key, None) or self._new_cursor(adapt)
        cursor.execute(text, params)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        if len(rows) <= 1 and _size(rows) <= LARGEST_KEPT:
            if len(self.cursors) >= MOST_CURSORS:
                self.cursors.clear()
            self.cursors[key] = cursor
        return rows

    def _forget_old_plans(self) -> None:
        now = local_clock()
        if now - self.planned_at >= PLANS_SEC:
            RawCursor(self.session).execute(b"DISCARD PLANS", prepare=False)
            self.planned_at = now

    def _new_cursor(self, adapt: Callable[[Any], object]) -> RawCursor[Any]:
        cursor: RawCursor[Any] = RawCursor(self.session)
        adapt(cursor)
        # Otherwise, the size of a number would make it another statement.
        cursor.adapters.register_dumper(int, Int8Dumper)
        return cursor


def _size(rows: list[tuple[Any, ...]]) -> int:
    return sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))


def prepare_on(connection: BaseDatabaseWrapper) -> None:
    """Prepare statements on the present session of ``connection`` from now on."""
    session = connection.connection
    if session is not None and _prepared_of(connection) is None:
        connection.jobreaper_prepared = _Prepared(session)  # type: ignore[attr-defined]


def prepares(connection: BaseDatabaseWrapper) -> bool:
    """Return whether statements on ``connection`` are prepared. Where somebody wants to see or to
    change each statement, none is; nor in a transaction, which an unknown one would break.
    """
    known = _prepared_of(connection)
    return (
        known is not None
        and not known.has_forgotten
        and known.session.pgconn.transaction_status == TransactionStatus.IDLE
        and connection.autocommit
        and not connection.execute_wrappers
        and not connection.queries_logged
    )


def has_forgotten(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the present session of ``connection`` has lost what it had prepared. Only a
    new session prepares again.
    """
    known = _prepared_of(connection)
    return known is not None and known.has_forgotten


def _prepared_of(connection: BaseDatabaseWrapper) -> _Prepared | None:
    known: _Prepared | None = getattr(connection, "jobreaper_prepared", None)
    return known if known is not None and known.session is connection.connection else None


def rows_of(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: Mapping[str, Any],
    adapt: Callable[[Any], object],
) -> list[tuple[Any, ...]] | None:
    """Send one statement on a session that prepares, and return its rows. ``None`` if the session
    has to be sent it as it is: nothing was done.

    ``adapt`` prepares a cursor, before its first statement is sent.
    """
    known = _prepared_of(connection)
    text, names = _numbered(statement, *_few(statement, params))
    if known is None or text in known.untyped:
        return None
    session = known.session
    before, session.prepare_threshold = session.prepare_threshold, THRESHOLD
    try:
        with connection.wrap_database_errors:
            return known.rows_of(text, [params[name] for name in names], adapt)
    except Exception as error:
        if session.info.transaction_status != TransactionStatus.IDLE:
            raise
        sqlstate = getattr(error.__cause__, "sqlstate", None) or ""
        if sqlstate in FORGOTTEN:
            known.has_forgotten = True
            known.cursors.clear()
        elif sqlstate.startswith(UNTYPED):
            known.untyped.add(text)
        else:
            raise
        return None
    finally:
        session.prepare_threshold = before


def _few(statement: str, params: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return those of the parameters that limit a statement to a few rows, and how many."""
    limits = [(name, params[name]) for name in _limits(statement)]
    return [(name, rows) for name, rows in limits if rows is not None and 0 <= rows <= FEW_ROWS]


@lru_cache(maxsize=500)
def _limits(statement: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_LIMIT.findall(statement)))


@lru_cache(maxsize=500)
def _numbered(statement: str, *constants: tuple[str, int]) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with ``$1`` and so on in place of its named parameters, and their names
    in this order. ``constants`` are parameters that become part of the text.
    """
    numbers: dict[str, int] = {}
    values = dict(constants)

    def numbered(found: re.Match[str]) -> str:
        name = found[1]
        if name in values:
            return str(values[name])
        return "%" if name is None else f"${numbers.setdefault(name, len(numbers) + 1)}"

    return _PARAMETER.sub(numbered, statement).encode(), tuple(numbers)
