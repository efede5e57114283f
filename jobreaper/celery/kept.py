"""The database connection of leased tasks, kept from one to the next.

Celery closes a task's connections before and after it. A new one costs more than a lease, so a
leased task has a connection that Celery does not see, and leaves it to the next one.
``CONN_MAX_AGE`` says what may be kept:

- With 0, Django's default, a task begins on a session on which no other task's function has done
  anything. So a connection is kept only if the function has not used it, and it is closed when no
  further leased task wants it.
- Otherwise, a connection is kept until that age, as between two requests.

A connection that was open before the task belongs to somebody else, and is left to Celery; so are
those of ``CELERY_DB_REUSE_MAX``, of a pool, and of packages that move sessions from tenant to
tenant.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from celery import Task
from celery.app.task import Context
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Connection, Cursor
from psycopg.pq import TransactionStatus

from jobreaper import conf
from jobreaper.db import in_transaction, is_elsewhere, is_lost, moves_sessions, prepared
from jobreaper.identity import local_clock
from jobreaper.presence import here
from jobreaper.protocol import heartbeat
from jobreaper.protocol.holding import Holding

# With a CONN_MAX_AGE of 0, a connection is kept this long for the next task.
IDLE_SEC: Final = 5.0


class _Idle(NamedTuple):
    connection: BaseDatabaseWrapper
    closes_at: float


_lock = threading.Lock()
_idle: Final[dict[str, list[_Idle]]] = {}

# The sessions of which somebody has made a cursor while they were lent.
_used: Final[WeakSet[Connection[Any]]] = WeakSet()


class Kept:
    """A task's connection, from before its claim to after its end."""

    def __init__(self, alias: str, *, may_be_kept: bool) -> None:
        self.alias = alias
        self._may_be_kept = may_be_kept
        # The lease of the function to which it was lent.
        self._holding: Holding | None = None
        # The session, if that function has not used it.
        self._unused: Connection[Any] | None = None

    @contextmanager
    def lent(self, holding: Holding) -> Iterator[None]:
        """Note whether the block, which is the task's function, uses the connection."""
        self._holding = holding
        session = connections[self.alias].connection
        if session is None or not self._may_be_kept:
            yield
            return
        factories = session.cursor_factory, session.server_cursor_factory
        session.cursor_factory, session.server_cursor_factory = map(_noting, factories)
        try:
            yield
        finally:
            session.cursor_factory, session.server_cursor_factory = factories
            self._unused = None if session in _used else session
            _used.discard(session)

    def put_by(self) -> None:
        """Keep the connection for the next task if that may be, and close it otherwise."""
        connection = connections[self.alias]
        closes_at = self._closes_at(connection) if _is_in_order(connection) else 0.0
        if closes_at <= local_clock():
            _close(connection)
            return
        here.prepare(connection)
        if not connection.allow_thread_sharing:
            connection.inc_thread_sharing()
        with _lock:
            _idle.setdefault(self.alias, []).append(_Idle(connection, closes_at))
        heartbeat.heart.expect(sweeper, by=closes_at + conf.settings().heartbeat_sec)

    def _closes_at(self, connection: BaseDatabaseWrapper) -> float:
        """Return until when it may be kept, on the local clock; 0 if not at all."""
        holding = self._holding
        is_unused = holding is None or self._unused is connection.connection
        if _max_age(connection) == 0:
            return local_clock() + IDLE_SEC if is_unused else 0.0
        try:
            # The next claim would look for its job where the function has moved the session.
            if holding and not is_unused and is_elsewhere(connection, holding.session):
                return 0.0
        except Error:
            return 0.0
        if connection.close_at is None:
            return float("inf")
        return local_clock() + connection.close_at - time.monotonic()


def is_called(request: Context) -> bool:
    """Return whether a task is called by code, and not by a worker for a message. It may then be in
    its caller's transaction.
    """
    return bool(request.called_directly or request.is_eager)


@contextmanager
def kept_connection(task: Task[..., Any], request: Context, alias: str) -> Iterator[Kept]:
    """Let this thread's connection to ``alias`` be one that is kept, until the block ends."""
    is_celerys = bool(task.app.conf.get("CELERY_DB_REUSE_MAX"))
    own = connections[alias]
    may_be_kept = not (is_celerys or is_called(request)) and _may_be_kept(own)
    kept = Kept(alias, may_be_kept=may_be_kept)
    if may_be_kept:
        # Elsewhere, the thread's own stays the one that others may have at hand.
        connections[alias] = _taken_up(alias) or own.copy(alias)
    try:
        yield kept
    finally:
        if may_be_kept:
            kept.put_by()
            connections[alias] = own
        elif is_celerys:
            here.prepare(own)


def _may_be_kept(connection: BaseDatabaseWrapper) -> bool:
    return (
        connection.connection is None
        and not in_transaction(connection)
        and not connection.execute_wrappers
        and not connection.settings_dict["OPTIONS"].get("pool")
        and not moves_sessions(connection)
        # Otherwise, the session says which rows a task may see, perhaps since it was opened.
        and conf.settings().session_settings == conf.DEFAULT_SESSION_SETTINGS
    )


def _taken_up(alias: str) -> BaseDatabaseWrapper | None:
    """Return a connection that was kept and can be used."""
    while True:
        with _lock:
            if not (idle := _idle.get(alias)):
                return None
            connection, closes_at = idle.pop()
        if closes_at > local_clock() and not here.is_cut(connection):
            return connection
        _close(connection)


def _is_in_order(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the next task can begin on a connection as on a new one."""
    return (
        not is_lost(connection)
        and connection.connection.info.transaction_status == TransactionStatus.IDLE
        and connection.autocommit
        and not connection.in_atomic_block
        and not connection.errors_occurred
        and not connection.execute_wrappers
        and not prepared.has_forgotten(connection)
    )


def _max_age(connection: BaseDatabaseWrapper) -> float:
    max_age = connection.settings_dict["CONN_MAX_AGE"]
    return float("inf") if max_age is None else float(max_age)


def _close(connection: BaseDatabaseWrapper) -> None:
    with suppress(Error):
        connection.close()


def close_idle(now: float = float("inf")) -> None:
    """Close the connections that no task has wanted since ``now``, on the local clock, or longer;
    without ``now``, all that are kept.
    """
    with _lock:
        due = [each for idle in _idle.values() for each in idle if each.closes_at <= now]
        for alias, idle in _idle.items():
            _idle[alias] = [each for each in idle if each.closes_at > now]
    for each in due:
        _close(each.connection)


class Sweeper:
    """Closes connections that no task wants any more, on the heartbeat thread: see
    ``heartbeat.Companion``. Those that have a ``CONN_MAX_AGE`` wait for the next task, as in
    Django for the next request.
    """

    def next_turn(self, held: Collection[Holding]) -> float | None:
        """Return when the next connection is to be closed."""
        with _lock:
            waiting = [each for idle in _idle.values() for each in idle]
        return min(
            (each.closes_at for each in waiting if _max_age(each.connection) == 0), default=None
        )

    def take_turn(self, held: Collection[Holding]) -> None:
        """Close what is due."""
        close_idle(local_clock())

    def idle(self) -> None:
        """Nothing: connections are kept without leases too."""


sweeper: Final = Sweeper()


@cache
def _noting(factory: type[Cursor[Any]]) -> Any:
    """Return a class of cursors that note that their session is used."""

    class Noting(factory):  # type: ignore[misc, valid-type]
        def __init__(self, connection: Connection[Any], *args: Any, **kwargs: Any) -> None:
            super().__init__(connection, *args, **kwargs)
            _used.add(connection)

    return Noting


def _start_afresh() -> None:
    """Let a forked child forget the connections of its parent, which it must not close."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_start_afresh)
