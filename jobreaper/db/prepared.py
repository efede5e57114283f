"""Statements that a session prepares, so that the server plans them once and not each time.

The server plans a statement of the protocol for longer than it runs it. Only sessions that
``prepare_on()`` names prepare anything: those that last, and on which no pooler stands in between,
since a prepared statement belongs to one server process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final
from weakref import WeakSet

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Connection, Error, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper

# A statement is prepared when it is sent once more than this.
THRESHOLD: Final = 2

# The session no longer has the statement, as after DISCARD ALL; a migration has changed what it
# returns; or the server cannot tell the type of a parameter that is not part of the text (class
# 42). In each case, nothing was done.
NOT_PREPARED: Final = ("26000", "0A000", "42")

_PARAMETER: Final = re.compile(r"%(?:\((\w+)\)s|(%))")

_sessions: Final[WeakSet[Connection[Any]]] = WeakSet()


def prepare_on(connection: BaseDatabaseWrapper) -> None:
    """Prepare statements on the present session of ``connection`` from now on."""
    if connection.connection is not None:
        _sessions.add(connection.connection)


def prepares(connection: BaseDatabaseWrapper) -> bool:
    """Return whether statements on ``connection`` are prepared. Where somebody wants to see or to
    change each statement, none is; nor in a transaction, which an unknown one would break.
    """
    return (
        connection.connection in _sessions
        and connection.connection.info.transaction_status == TransactionStatus.IDLE
        and connection.autocommit
        and not connection.execute_wrappers
        and not connection.queries_logged
    )


def rows_of(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: Mapping[str, Any],
    adapt: Callable[[Any], object],
) -> list[tuple[Any, ...]] | None:
    """Send one statement on a session that prepares, and return its rows. ``None`` if the session
    has to be sent it as it is: nothing was done, and from now on it prepares nothing.

    ``adapt`` prepares the cursor, before the statement is sent.
    """
    session: Connection[Any] = connection.connection
    text, names = _numbered(statement)
    before, session.prepare_threshold = session.prepare_threshold, THRESHOLD
    try:
        with connection.wrap_database_errors, RawCursor(session) as cursor:
            adapt(cursor)
            # Otherwise, the size of a number would make it another statement.
            cursor.adapters.register_dumper(int, Int8Dumper)
            cursor.execute(text, [params[name] for name in names])
            return cursor.fetchall()
    except Exception as error:
        if not _is_unknown(session, error):
            raise
        _sessions.discard(session)
        return None
    finally:
        session.prepare_threshold = before


def _is_unknown(session: Connection[Any], error: Exception) -> bool:
    cause = error.__cause__
    is_idle = session.info.transaction_status == TransactionStatus.IDLE
    return is_idle and isinstance(cause, Error) and (cause.sqlstate or "").startswith(NOT_PREPARED)


@lru_cache(maxsize=500)
def _numbered(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with ``$1`` and so on in place of its named parameters, and their names
    in this order.
    """
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        name = found[1]
        return "%" if name is None else f"${numbers.setdefault(name, len(numbers) + 1)}"

    return _PARAMETER.sub(numbered, statement).encode(), tuple(numbers)
