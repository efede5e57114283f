"""Connections to PostgreSQL, and statements sent over them within time limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.asyncio import async_unsafe
from psycopg import ClientCursor
from psycopg.pq import TransactionStatus

from jobreaper import conf, sql
from jobreaper.db import prepared
from jobreaper.db.text import codec, details_left_out, within, without_details
from jobreaper.db.times import read_any_time
from jobreaper.db.values import array_of_texts
from jobreaper.db.wrapped import sent
from jobreaper.exceptions import ConfigurationError, UnsupportedDatabase

# A process that is frozen between its statement and its COMMIT keeps its rows locked, and passes
# skip locked rows. So the server ends such a transaction.
IDLE_TIMEOUT: Final = "5s"

_WITHIN_OWN_LIMITS: Final = "jobreaper_within_own_limits"

_SESSION_PARTS: Final = {"session_now": sql.compose("fragments/session_now", {})}
_SESSION: Final = sql.render("statements/session", _SESSION_PARTS)
_SET_TIMEOUTS: Final = sql.render("statements/set_timeouts", _SESSION_PARTS)
LIMIT: Final = sql.without_comments(sql.render("statements/limit"))
MOVE: Final = sql.without_comments(sql.render("statements/move"))
MOVE_FROM_HOME: Final = sql.render("statements/move_from_home")

# What a connection has in packages that keep a schema for each tenant.
MOVES_SESSIONS: Final = ("set_schema", "set_tenant")

# No settings: whatever the session, it is this one.
ANY_SESSION: Final = "{}"


@async_unsafe("jobreaper waits for the database: in a coroutine, call it by sync_to_async()")
def connection_for(alias: str) -> BaseDatabaseWrapper:
    """Return this thread's connection to ``alias``.

    Raises:
        UnsupportedDatabase: the alias is not a PostgreSQL database.
        ConfigurationError: its settings switch autocommit off.
        SynchronousOnlyOperation: this thread runs an event loop; nothing was sent.
    """
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise UnsupportedDatabase(
            f"database {alias!r} is {connection.vendor}, and jobreaper keeps jobs in PostgreSQL "
            "only: route the job tables to a PostgreSQL database"
        )
    if not connection.settings_dict["AUTOCOMMIT"]:
        raise ConfigurationError(
            f"DATABASES[{alias!r}] has AUTOCOMMIT off, so nothing would commit what jobreaper "
            "writes: leave it on"
        )
    return connection


def write_as_read(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Let the session of an open connection write times and intervals as psycopg reads them,
    whatever the role's or the database's ``DateStyle`` is. A receiver of ``connection_created``.

    Otherwise, a claim would be committed and its rows could not be read.
    """
    if connection.vendor != "postgresql":
        return
    setting = connection.connection.pgconn.parameter_status
    # A pooler may not say it.
    times, intervals = setting(b"DateStyle") or b"ISO", setting(b"IntervalStyle") or b"postgres"
    if not (times.startswith(b"ISO") and intervals == b"postgres"):
        with connection.cursor() as cursor:
            cursor.execute(sql.render("statements/write_as_read"))


def postgresql_among(aliases: Iterable[str] | None) -> list[BaseDatabaseWrapper]:
    """Return this thread's connections to those of ``aliases`` that are PostgreSQL databases."""
    found = [connections[alias] for alias in aliases or ()]
    return [connection for connection in found if connection.vendor == "postgresql"]


def fetch(
    connection: BaseDatabaseWrapper, statement: str, params: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Send one statement and return its rows. An error does not quote them. A time that Python
    cannot represent is returned as the earliest or the latest that it can.
    """
    with details_left_out():
        return rows_of(connection, statement, params, read_any_time)


def rows_of(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: Mapping[str, Any],
    adapt: Callable[[Any], object],
) -> list[tuple[Any, ...]]:
    """Send one statement and return its rows. ``adapt`` is called with the cursor before."""
    text = sql.without_comments(statement)
    if prepared.prepares(connection):
        given = sendable(connection, params)
        if (found := prepared.rows_of(connection, text, given, adapt)) is not None:
            return found
    with connection.cursor() as cursor:
        adapt(cursor)
        cursor.execute(*sent(connection, text, sendable(connection, params)))
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def sendable(connection: BaseDatabaseWrapper, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a statement on an open connection, with escapes for characters that
    the database's encoding does not have.
    """
    if encoding := codec(server_encoding(connection)):
        return {name: within(encoding, value) for name, value in params.items()}
    return params


def server_encoding(connection: BaseDatabaseWrapper) -> str | None:
    """Return the encoding of an open connection's database, by PostgreSQL's name for it."""
    name: bytes | None = connection.connection.pgconn.parameter_status(b"server_encoding")
    return None if name is None else name.decode()


def fetch_within(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: Mapping[str, Any],
    *,
    lock_timeout_sec: float,
    statement_timeout_sec: float,
    check: Callable[[list[tuple[Any, ...]]], object] | None = None,
    session: str | None = None,
) -> list[tuple[Any, ...]]:
    """Send one statement that waits and runs no longer than the timeouts, and return its rows. If
    ``check`` raises an exception for the rows, the statement is rolled back. If ``session`` is
    given, the statement runs in it, whatever the connection's own session is.

    Outside of a transaction and without a ``check``, this is one round trip.
    """
    nested = in_transaction(connection)
    if check is None and not nested:
        limits = {
            "lock_timeout": f"{lock_timeout_sec * 1000:.0f}ms",
            "statement_timeout": f"{statement_timeout_sec * 1000:.0f}ms",
        }
        with within_own_limits():
            return _fetch_together(connection, statement, {**params, **limits}, session)
    with (
        timeouts(
            connection, lock_sec=lock_timeout_sec, statement_sec=statement_timeout_sec
        ) as present,
        moved(connection, present, session or present, put_back=nested),
    ):
        rows = fetch(connection, statement, params)
        if check is not None:
            check(rows)
        return rows


def _fetch_together(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: Mapping[str, Any],
    session: str | None,
) -> list[tuple[Any, ...]]:
    """Send a statement together with those that limit and move it. Statements that are sent
    together are one transaction.
    """
    moves = [] if session in (None, ANY_SESSION) else [MOVE]
    together = ";\n".join([LIMIT, *moves, sql.without_comments(statement)])
    with details_left_out(), connection.cursor() as cursor:
        read_any_time(cursor)
        arguments: Any = sent(
            connection, together, sendable(connection, {**params, "session": session})
        )
        # Several statements take no parameters, unless the driver merges them.
        if not isinstance(cursor.cursor, ClientCursor):
            arguments = [ClientCursor(connection.connection).mogrify(*arguments)]
        cursor.execute(*arguments)
        while cursor.nextset():
            pass
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


@contextmanager
def within_own_limits() -> Iterator[None]:
    """Mark a database error that leaves the block for ``is_within_own_limits()``."""
    try:
        yield
    except DatabaseError as error:
        setattr(without_details(error), _WITHIN_OWN_LIMITS, True)
        raise


@contextmanager
def timeouts(
    connection: BaseDatabaseWrapper, *, lock_sec: float, statement_sec: float
) -> Iterator[str]:
    """A transaction whose statements wait and run no longer than the timeouts. It returns what the
    session is, see ``moved()``.

    The timeouts apply until the transaction ends, so nothing remains set on a connection of
    pgbouncer. In a transaction of the caller, the previous values are restored.
    ``is_within_own_limits()`` recognizes an error that leaves the block.
    """
    with within_own_limits(), _timeouts(connection, lock_sec, statement_sec) as session:
        yield session


def is_within_own_limits(error: Exception) -> bool:
    """Return whether ``timeouts()`` limited a statement's time, and not a setting of the role or
    the database.
    """
    return getattr(error, _WITHIN_OWN_LIMITS, False)


@contextmanager
def _timeouts(
    connection: BaseDatabaseWrapper, lock_sec: float, statement_sec: float
) -> Iterator[str]:
    names = {"session_settings": array_of_texts(conf.settings().session_settings)}
    nested = in_transaction(connection)
    with transaction.atomic(using=connection.alias):
        [(lock_timeout, statement_timeout, idle_timeout, session, *_)] = fetch(
            connection,
            _SET_TIMEOUTS,
            {
                "lock_timeout": f"{lock_sec * 1000:.0f}ms",
                "statement_timeout": f"{statement_sec * 1000:.0f}ms",
                "idle_timeout": IDLE_TIMEOUT,
                "nested": nested,
                **names,
            },
        )
        yield session
        if nested:
            fetch(
                connection,
                _SET_TIMEOUTS,
                {
                    "lock_timeout": lock_timeout,
                    "statement_timeout": statement_timeout,
                    "idle_timeout": idle_timeout,
                    "nested": nested,
                    **names,
                },
            )


def session_of(connection: BaseDatabaseWrapper) -> str:
    """Return what the session of a connection is beyond its DSN: its search_path, its role and what
    else ``SESSION_SETTINGS`` names. Equal sessions give equal texts.
    """
    params = {"session_settings": array_of_texts(conf.settings().session_settings)}
    [(session,)] = fetch(connection, _SESSION, params)
    return str(session)


def is_elsewhere(connection: BaseDatabaseWrapper, session: str) -> bool:
    """Return whether the session of a connection is another one than ``session``."""
    return session not in (ANY_SESSION, session_of(connection))


@contextmanager
def moved(
    connection: BaseDatabaseWrapper, present: str, session: str, *, put_back: bool
) -> Iterator[None]:
    """Let each statement of the block run in ``session``, although the connection's own is
    ``present``. The block is in a transaction. With ``put_back``, that continues afterwards, in
    the present session.
    """
    if session == present:
        yield
        return
    with connection.execute_wrapper(partial(_move_and_execute, session)):
        yield
    if put_back:
        with connection.cursor() as cursor:
            cursor.execute(*sent(connection, MOVE, {"session": present}))


@contextmanager
def beginning_in(connection: BaseDatabaseWrapper, home: str, session: str) -> Iterator[None]:
    """Let statements of the block, which is somebody else's code, run in ``session`` as long as
    that code does not move its connection itself. ``home`` is the session of a new connection.
    """
    if session == home:
        yield
        return
    with connection.execute_wrapper(partial(_move_and_execute, session, home=home)):
        yield


def _move_and_execute(
    session: str,
    execute: Callable[..., Any],
    statement: str,
    params: Any,
    many: bool,
    context: dict[str, Any],
    home: str | None = None,
) -> Any:
    connection = context["connection"]
    # Nothing remains set on a connection of pgbouncer, or of a pool.
    alone = nullcontext() if in_transaction(connection) else transaction.atomic(connection.alias)
    with alone:
        # Over a cursor of the driver, since packages for tenants set the search_path whenever they
        # make one of Django's.
        with connection.wrap_database_errors, connection.connection.cursor() as cursor:
            move = MOVE if home is None else MOVE_FROM_HOME
            cursor.execute(move, {"session": session, "home": home})
        return execute(statement, params, many, context)


def moves_sessions(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a package moves the sessions of this database from tenant to tenant."""
    return any(hasattr(connection, name) for name in MOVES_SESSIONS)


def is_lost(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the connection behind ``connection`` was lost or never opened, or cannot be
    used any more because an exception, such as a soft time limit, interrupted a statement.
    """
    raw = connection.connection
    return raw is None or raw.closed or raw.info.transaction_status == TransactionStatus.ACTIVE


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether statements on ``connection`` are part of a transaction of the caller."""
    opened = connection.connection is not None
    return connection.in_atomic_block or (opened and not connection.autocommit)
