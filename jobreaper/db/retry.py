"""Which errors are transient, and how a statement is sent again after one."""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Final, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Error as PsycopgError
from psycopg import OperationalError as PsycopgOperationalError

from jobreaper.db.connection import in_transaction, is_lost, is_within_own_limits, timeouts
from jobreaper.db.text import details_left_out, in_words

R = TypeVar("R")

logger = logging.getLogger("jobreaper.db")

# Transient errors: the server is starting, stopping or read-only for a while, or another
# transaction was in the way. https://www.postgresql.org/docs/current/errcodes-appendix.html
TRANSIENT_SQLSTATES: Final = frozenset(
    {
        "25P03",  # idle_in_transaction_session_timeout
        "25P04",  # transaction_timeout
        "25006",  # read_only_sql_transaction: a standby, until the failover is complete
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

# A statement_timeout or an operator has ended the statement. If it is the role's or the database's
# timeout, the reason may have been a lock; our own timeouts are long enough.
QUERY_CANCELED: Final = "57014"

# The errors of the role's or the database's time limits. The next try has these limits instead,
# because work that is done must not be lost to a limit for other statements.
TIME_LIMITS: Final = frozenset({QUERY_CANCELED, "25P04", "55P03"})
LOCK_TIMEOUT_SEC: Final = 5.0
STATEMENT_TIMEOUT_SEC: Final = 30.0

# Errors that do not depend on the rows of a statement: no memory or disk is left, an operator
# intervened, the system failed. These are PostgreSQL's classes, the first two characters.
SURROUNDINGS: Final = ("53", "57", "58")

# Six waits, each 1.5 to 2 times as long as the last, take about six seconds. A restart of
# PostgreSQL takes one to three.
RETRIES: Final = 6
FIRST_RETRY_SEC: Final = 0.1

# The number of consecutive failures of a block's statements, by alias: see one_outage().
_failures: ContextVar[defaultdict[str, int] | None] = ContextVar("failures", default=None)


def may_be_outage(error: BaseException) -> bool:
    """Return whether ``error``, or a cause of it, may mean that a database could not be reached."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        if isinstance(link, OperationalError | InterfaceError | PsycopgOperationalError):
            return True
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return False


def is_transient(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    """Return whether the statement that raised ``error`` may succeed a moment later."""
    sqlstate = getattr(error.__cause__, "sqlstate", None)
    if sqlstate == QUERY_CANCELED:
        return not is_within_own_limits(error)
    if sqlstate is not None and not sqlstate.startswith("08"):
        return sqlstate in TRANSIENT_SQLSTATES
    return ended_session(connection, error)


def may_be_a_rows_fault(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    """Return whether the statement that raised ``error`` may succeed for other rows."""
    sqlstate = getattr(error.__cause__, "sqlstate", None) or ""
    return not (sqlstate.startswith(SURROUNDINGS) or is_transient(connection, error))


def ended_session(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    """Return whether ``error`` ended its session. The connection does not always show this: on
    leaving ``atomic()``, Django may have opened another one.
    """
    cause = error.__cause__
    if isinstance(cause, PsycopgError):
        without_word = isinstance(cause, PsycopgOperationalError) and cause.sqlstate is None
        if without_word or cause.diag.severity_nonlocalized in ("FATAL", "PANIC"):
            return True
    return is_lost(connection)


@contextmanager
def one_outage() -> Iterator[None]:
    """Let the statements of this block share the retries of one statement, until one of them
    succeeds. Otherwise, each of them would wait for the same problem.
    """
    token = _failures.set(defaultdict(int))
    try:
        yield
    finally:
        _failures.reset(token)


@contextmanager
def no_retries() -> Iterator[None]:
    """Send the statements of this block only once, because their process has other work to do."""
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
    """Call ``send`` until it succeeds, its error is not transient, ``not_after()`` returns that it
    has started something that must not be done twice, or the retries are used up.

    The argument of ``send`` says whether an earlier call lost its connection, and so may have been
    committed. After a time limit of the role or the database, our own limits replace it. In a
    transaction of the caller, nothing is retried: only the caller can start it again.

    An error that is raised does not quote rows, not even one of COMMIT.
    """
    with details_left_out():
        return _retrying(connection, send, not_after)


def _retrying(
    connection: BaseDatabaseWrapper, send: Callable[[bool], R], not_after: Callable[[], bool]
) -> R:
    failures = _failures.get()
    if failures is None:
        failures = defaultdict(int)
    may_be_committed = has_run_into_limit = False
    while not in_transaction(connection):
        try:
            with _own_limits(connection) if has_run_into_limit else nullcontext():
                result = send(may_be_committed)
        except (DatabaseError, InterfaceError) as error:
            if not_after() or not is_transient(connection, error):
                raise
            if ended_session(connection, error):
                may_be_committed = True
                _discard(connection)
            if failures[connection.alias] >= RETRIES:
                raise
            has_run_into_limit |= _is_foreign_limit(error)
            logger.info("transient database error, trying again: %s", in_words(error))
        else:
            failures.pop(connection.alias, None)
            return result
        wait = FIRST_RETRY_SEC * 2 ** failures[connection.alias]
        failures[connection.alias] += 1
        time.sleep(wait * random.uniform(0.75, 1.25))
    return send(may_be_committed)


def _own_limits(connection: BaseDatabaseWrapper) -> AbstractContextManager[object]:
    return timeouts(connection, lock_sec=LOCK_TIMEOUT_SEC, statement_sec=STATEMENT_TIMEOUT_SEC)


def _is_foreign_limit(error: Exception) -> bool:
    sqlstate = getattr(error.__cause__, "sqlstate", None)
    return sqlstate in TIME_LIMITS and not is_within_own_limits(error)


def _discard(connection: BaseDatabaseWrapper) -> None:
    """Close a lost connection. Often all connections of its pool were lost at the same time, and
    there are more of them than tries.
    """
    connection.close()
    if pool := getattr(connection, "pool", None):
        pool.check()
