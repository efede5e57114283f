"""Sending statements: which errors pass by themselves, when to try again, which text fits."""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, TypeVar

from django.db import (
    DatabaseError,
    Error,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Error as PsycopgError
from psycopg import OperationalError as PsycopgOperationalError
from psycopg.pq import TransactionStatus

from jobreaper import sql
from jobreaper.exceptions import ConfigurationError, JobreaperError, UnsupportedDatabase

R = TypeVar("R")

# Whether in atomic(), and how many savepoints deep.
Depth = tuple[bool, int]

logger = logging.getLogger(__name__)

# Errors that pass by themselves: the server is starting, stopping or read-only for a while, or
# another transaction was in the way. https://www.postgresql.org/docs/current/errcodes-appendix.html
TRANSIENT_SQLSTATES: Final = frozenset(
    {
        "25P03",  # idle_in_transaction_session_timeout
        "25006",  # read_only_sql_transaction: a standby, until the failover is through
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "53300",  # too_many_connections
        "55P03",  # lock_not_available
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "57P05",  # idle_session_timeout: the work took longer
    }
)

# undefined_table, undefined_column
UNMIGRATED_SQLSTATES: Final = frozenset({"42P01", "42703"})

# Six waits, each half as long again to twice as long as the last, are about six seconds: a restart
# of PostgreSQL takes one to three.
RETRIES: Final = 6
FIRST_RETRY_SEC: Final = 0.1

# How often in a row the statements of a block have failed, by alias: see one_outage().
_failures: ContextVar[defaultdict[str, int] | None] = ContextVar("failures", default=None)

# A process frozen between its statement and its COMMIT holds the locks of its rows, and a pass
# steps over locked rows: the server ends such a transaction.
IDLE_TIMEOUT: Final = "5s"

# Of the rows that cannot be written so many of a table are named, and the others counted.
MOST_NAMED_ROWS: Final = 20

# In place of its database's alias, in atomic() that was left open: Django shows it.
ROLLED_BACK: Final = "of an atomic() that was left open and is rolled back"

# Longer texts are cut: a fail_reason of megabytes would be read with every row of a list.
LONGEST_TEXT: Final = 10_000


def connection_for(alias: str) -> BaseDatabaseWrapper:
    """Return this thread's connection to ``alias``.

    Raises:
        UnsupportedDatabase: the alias is not a PostgreSQL database.
        ConfigurationError: its settings switch autocommit off.
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


def fetch(
    connection: BaseDatabaseWrapper, statement: str, params: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Send one statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def fetch_within(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: Mapping[str, Any],
    *,
    lock_timeout_sec: float,
    statement_timeout_sec: float,
    check: Callable[[list[tuple[Any, ...]]], object] | None = None,
) -> list[tuple[Any, ...]]:
    """Send one statement that waits and runs no longer than the timeouts, and return its rows. What
    ``check`` of them raises undoes it.
    """
    with timeouts(connection, lock_sec=lock_timeout_sec, statement_sec=statement_timeout_sec):
        rows = fetch(connection, statement, params)
        if check is not None:
            check(rows)
        return rows


@contextmanager
def timeouts(
    connection: BaseDatabaseWrapper, *, lock_sec: float, statement_sec: float
) -> Iterator[None]:
    """A transaction whose statements wait and run no longer than the timeouts.

    The timeouts hold until the transaction ends, so nothing is left behind on a connection of
    pgbouncer's. In a transaction of the caller's the former values are put back.
    """
    set_timeouts = sql.render("statements/set_timeouts")
    nested = in_transaction(connection)
    with transaction.atomic(using=connection.alias):
        [(lock_timeout, statement_timeout, idle_timeout, *_)] = fetch(
            connection,
            set_timeouts,
            {
                "lock_timeout": f"{lock_sec * 1000:.0f}ms",
                "statement_timeout": f"{statement_sec * 1000:.0f}ms",
                "idle_timeout": IDLE_TIMEOUT,
            },
        )
        yield
        if nested:
            fetch(
                connection,
                set_timeouts,
                {
                    "lock_timeout": lock_timeout,
                    "statement_timeout": statement_timeout,
                    "idle_timeout": idle_timeout,
                },
            )


def is_lost(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the connection behind ``connection`` is gone, was never made, or cannot be
    used any more since an exception, such as a soft time limit, broke a statement off.
    """
    raw = connection.connection
    return raw is None or raw.closed or raw.info.transaction_status == TransactionStatus.ACTIVE


def may_be_outage(error: BaseException) -> bool:
    """Return whether ``error``, or one before it, may be that a database could not be reached."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        if isinstance(link, OperationalError | InterfaceError | PsycopgOperationalError):
            return True
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return False


def is_transient(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    """Return whether the statement that raised ``error`` may well succeed a moment later."""
    sqlstate = getattr(error.__cause__, "sqlstate", None)
    if sqlstate is not None and not sqlstate.startswith("08"):
        return sqlstate in TRANSIENT_SQLSTATES
    return _ended_session(connection, error)


def _ended_session(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    """Return whether ``error`` was the end of its session. The connection does not always show it:
    on the way out of ``atomic()`` Django may have opened another.
    """
    cause = error.__cause__
    if isinstance(cause, PsycopgError):
        without_word = isinstance(cause, PsycopgOperationalError) and cause.sqlstate is None
        if without_word or cause.diag.severity_nonlocalized in ("FATAL", "PANIC"):
            return True
    return is_lost(connection)


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether statements on ``connection`` belong to a transaction of the caller's."""
    opened = connection.connection is not None
    return connection.in_atomic_block or (opened and not connection.autocommit)


def open_transactions() -> dict[str, Depth]:
    """Return which of this thread's connections are in a transaction of the caller's, by alias, and
    how deep.
    """
    return {
        connection.alias: _depth(connection)
        for connection in connections.all(initialized_only=True)
        if in_transaction(connection)
    }


def close_left_open(before: Mapping[str, Depth] = MappingProxyType({})) -> list[str]:
    """Roll back what somebody has begun on this thread's connections and not ended since
    ``before``, which ``open_transactions()`` returned; return the aliases concerned. A connection
    that was in no transaction is closed, also one that was only switched out of autocommit.
    """
    undone = []
    for connection in connections.all(initialized_only=True):
        # Where the settings say so, every connection is out of autocommit, and in a transaction.
        if connection.vendor != "postgresql" or not connection.settings_dict["AUTOCOMMIT"]:
            continue
        depth = before.get(connection.alias)
        is_left_open = _depth(connection) > depth if depth else is_open(connection)
        if is_left_open:
            undone.append(connection.alias)
        if depth is None:
            if is_left_open or not connection.autocommit:
                _drop(connection)
        elif is_left_open:
            _roll_back_to(connection, depth)
    return undone


def _depth(connection: BaseDatabaseWrapper) -> Depth:
    return connection.in_atomic_block, len(connection.savepoint_ids)


def is_open(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction has begun on ``connection``, be it without Django's knowing."""
    raw = connection.connection
    return connection.in_atomic_block or (
        raw is not None
        and raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)
    )


def _drop(connection: BaseDatabaseWrapper) -> None:
    """Close a connection, also one in ``atomic()``, of which Django would keep the broken rest."""
    connection.in_atomic_block = False
    connection.savepoint_ids.clear()
    _disarm(connection.atomic_blocks)
    connection.atomic_blocks.clear()
    connection.needs_rollback = connection.closed_in_transaction = False
    connection.close()


def _roll_back_to(connection: BaseDatabaseWrapper, depth: Depth) -> None:
    """Leave the blocks of ``atomic()`` that are deeper, as an exception would have done."""
    connection.in_atomic_block, kept = depth
    first, *others = connection.savepoint_ids[kept:]
    del connection.savepoint_ids[kept:]
    _disarm(connection.atomic_blocks[-1 - len(others) :])
    del connection.atomic_blocks[-1 - len(others) :]
    # Without a savepoint of its own the block was part of the caller's.
    connection.needs_rollback = first is None
    if first is not None:
        try:
            connection.savepoint_rollback(first)
            connection.savepoint_commit(first)
        except Error:
            connection.needs_rollback = True


def _disarm(blocks: Iterable[transaction.Atomic]) -> None:
    """See to it that blocks end in an error where somebody leaves them after all, such as a
    suspended generator that is closed: they would end whatever transaction is then the thread's.
    """
    for block in blocks:
        block.using = ROLLED_BACK


def on_commit(connection: BaseDatabaseWrapper, hook: Callable[[], object]) -> None:
    """Call ``hook`` when the caller's transaction commits, at once where there is none.

    Also at once where autocommit is off and nobody has entered ``atomic()``: Django does not see
    such a commit and refuses hooks, and a job's end must not fail by an announcement.
    """
    if connection.in_atomic_block:
        transaction.on_commit(hook, using=connection.alias, robust=True)
    else:
        hook()


@contextmanager
def one_outage() -> Iterator[None]:
    """Let the statements of this block share the retries of one, until one of them succeeds: what
    is in the way of several in a row would be waited for by each in turn.
    """
    token = _failures.set(defaultdict(int))
    try:
        yield
    finally:
        _failures.reset(token)


@contextmanager
def no_retries() -> Iterator[None]:
    """Let the statements of this block be sent once: their process has more to do than to wait."""
    token = _failures.set(defaultdict(lambda: RETRIES))
    try:
        yield
    finally:
        _failures.reset(token)


def retrying(
    connection: BaseDatabaseWrapper,
    send: Callable[[bool], R],
    *,
    not_after: Callable[[], bool] = lambda: False,
) -> R:
    """Call ``send`` until it succeeds, its error is not transient, ``not_after()`` says that it has
    begun what must not be done twice, or the retries are used up.

    ``send`` is told whether an earlier call lost its connection, and so may have been committed.
    In a transaction of the caller's nothing is retried: only the caller can start that over.
    """
    failures = _failures.get()
    if failures is None:
        failures = defaultdict(int)
    may_be_committed = False
    while not in_transaction(connection):
        try:
            result = send(may_be_committed)
        except (DatabaseError, InterfaceError) as error:
            if not_after() or not is_transient(connection, error):
                raise
            if _ended_session(connection, error):
                may_be_committed = True
                _discard(connection)
            if failures[connection.alias] >= RETRIES:
                raise
            logger.info("transient database error, trying again: %s", in_words(error))
        else:
            failures.pop(connection.alias, None)
            return result
        wait = FIRST_RETRY_SEC * 2 ** failures[connection.alias]
        failures[connection.alias] += 1
        time.sleep(wait * random.uniform(0.75, 1.25))
    return send(may_be_committed)


def _discard(connection: BaseDatabaseWrapper) -> None:
    """Close a lost connection. What has ended it has often ended all those of its pool, more than
    there are tries.
    """
    connection.close()
    if pool := getattr(connection, "pool", None):
        pool.check()


def in_words(error: Exception, *, is_managed: bool = True) -> str:
    """Return an error as one line that says what to do where that is known; our own are left whole.
    Of a table that Django does not manage, no migration need have what is missing.
    """
    if isinstance(error, JobreaperError):
        return str(error)
    line = str(error).strip().split("\n", 1)[0] or type(error).__name__
    if getattr(error.__cause__, "sqlstate", None) in UNMIGRATED_SQLSTATES:
        by_hand = "" if is_managed else ", or add by hand what Django does not manage"
        return f"{line}: run `manage.py migrate` on this database{by_hand}"
    return line


def storable(text: object) -> str:
    """Return ``str(text)`` as PostgreSQL can store it, readable and of bounded length.

    NUL bytes and lone surrogates become escapes; what is cut off is counted.
    """
    try:
        whole = str(text)
    # It is somebody else's, and a job must not be stuck for want of words, whatever it raises.
    except BaseException:
        whole = f"<unprintable {type(text).__qualname__}>"
    cut = len(whole) - LONGEST_TEXT
    kept = whole if cut <= 0 else f"{whole[:LONGEST_TEXT]}… ({cut} characters cut)"
    return kept.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
