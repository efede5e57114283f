"""The worker's half: this process holds its lock on its sessions, and says that it is here.

The heartbeat thread does it on its own connection, so that it costs no further one. A job that is
done within ``SETTLE_SEC`` is not worth it: its process says nothing.
"""

from __future__ import annotations

import os
import select
import socket
import weakref
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final

import psycopg
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import ConnStatus

from jobreaper import conf, sql
from jobreaper.db import connection_for, fetch, in_transaction, prepared
from jobreaper.db.own import own_connection
from jobreaper.identity import local_clock, worker_id
from jobreaper.presence import statements
from jobreaper.protocol import heartbeat
from jobreaper.protocol.holding import Holding
from jobreaper.protocol.lease import Lease
from jobreaper.states import WorkerKind

# A session that was cut is noticed this soon: well within the grace.
CHECK_SEC: Final = 0.5
# After its first claim a process says that it is here: most jobs are done by then, and a lease is
# never so short.
SETTLE_SEC: Final = 1.0
# What fails again and again, such as a connection where none is free, is tried less and less often.
LONGEST_PAUSE_SEC: Final = 8.0


class Presence:
    """What this process says of itself, in each database where it holds leases.

    A companion of the heartbeat thread: see ``heartbeat.Companion``.
    """

    def __init__(self) -> None:
        self.kind = WorkerKind.HOLD
        self.runs: str | None = None
        # Databases in which the process is to be seen although it holds no lease.
        self._announced: frozenset[str] = frozenset()
        # When it was last noted, by alias.
        self._noted_at: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        # In a row; connections that are short are not to be fought for.
        self._failures = 0
        self._first_lease_at: float | None = None
        # Whether it was told to stop, and where it has said so.
        self._is_stopping = False
        self._said_so: set[str] = set()

    def announce(self, kind: WorkerKind, aliases: Iterable[str], runs: str | None = None) -> None:
        """Be seen from now on, whether or not there are leases, until ``leave()``."""
        self.kind, self.runs = kind, runs
        self._announced = frozenset(aliases)
        heartbeat.heart.accompany(self)

    def stop_soon(self) -> None:
        """Say that this process was told to stop. A signal handler may call this."""
        self._is_stopping = True

    def is_noted(self, alias: str) -> bool:
        """Return whether ``jobreaper_workers`` names this process in that database."""
        return alias in self._noted_at

    def next_turn(self, held: Collection[Holding]) -> float | None:
        """Return when it next has something to say, ``None`` where it has not."""
        aliases = self._aliases(held)
        if not aliases or not conf.settings().presence_grace_sec:
            self._first_lease_at = None
            return None
        if held and self._first_lease_at is None:
            self._first_lease_at = local_clock()
        elif not held:
            self._first_lease_at = None
        return min(self._turn_of(alias) for alias in aliases)

    def take_turn(self, held: Collection[Holding]) -> None:
        """Hold the lock, and note what this process is and holds, where it is time for it."""
        leases = Counter(lease.alias for lease in held)
        now = local_clock()
        self._failures += 1
        for alias in self._aliases(held):
            if self._turn_of(alias) <= now:
                self._asked_at[alias] = now
                self._see_to(alias, leases[alias])
        self._failures = 0

    def _see_to(self, alias: str, leases: int) -> None:
        connection = own_connection(conf.settings().presence_alias(alias))
        if is_cut(connection):
            connection.close()
        noted_at = self._noted_at.get(alias)
        is_due = noted_at is None or local_clock() - noted_at >= conf.settings().heartbeat_sec
        if is_due or not is_settled(connection):
            self._note(alias, connection, leases)
        if self._is_stopping and alias in self._noted_at and alias not in self._said_so:
            with connection.cursor() as cursor:
                cursor.execute(sql.render("statements/presence_stopping"), {"worker": worker_id()})
            self._said_so.add(alias)

    def leave(self) -> None:
        """Be seen no more: the process ends, or has no lease left."""
        self._announced, self._is_stopping = frozenset(), False
        self._said_so.clear()
        noted, self._noted_at = self._noted_at, {}
        for alias in noted:
            route = conf.settings().presence_alias(alias)
            with suppress(Error), connection_for(route).cursor() as cursor:
                cursor.execute(sql.render("statements/presence_left"), {"worker": worker_id()})

    idle = leave

    def _aliases(self, held: Collection[Holding]) -> set[str]:
        return {lease.alias for lease in held} | self._announced

    def _turn_of(self, alias: str) -> float:
        pause_sec = min(CHECK_SEC * 2.0 ** max(0, self._failures - 4), LONGEST_PAUSE_SEC)
        again = self._asked_at.get(alias, -pause_sec) + pause_sec
        if alias in self._noted_at or alias in self._announced:
            return again
        return max(again, (self._first_lease_at or 0.0) + SETTLE_SEC)

    def _note(self, alias: str, connection: BaseDatabaseWrapper, leases: int) -> None:
        is_direct = lock(connection)
        if is_direct is False:
            return  # A watcher is at it: in a moment.
        with connection.cursor() as cursor:
            cursor.execute(
                sql.render("statements/presence_note"),
                {
                    "worker": worker_id(),
                    "kind": self.kind,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "version": version("jobreaper"),
                    "runs": self.runs,
                    "leases": leases,
                    "is_direct": bool(is_direct),
                },
            )
        self._noted_at[alias] = local_clock()


# The sessions on which this process holds its lock, and those of a pooler, which cannot: by the
# driver's connection, whether it does.
_sessions: weakref.WeakKeyDictionary[Any, bool | None] = weakref.WeakKeyDictionary()


def is_settled(connection: BaseDatabaseWrapper) -> bool:
    """Return whether there is nothing left to do for the present session of ``connection``."""
    return connection.connection is not None and connection.connection in _sessions


def is_direct(connection: BaseDatabaseWrapper) -> bool:
    """Return whether this process holds its lock on the present session of ``connection``, so that
    no pooler is in between. Asks no server.
    """
    return bool(is_settled(connection) and _sessions[connection.connection])


def prepare(connection: BaseDatabaseWrapper) -> None:
    """Let the server plan each statement of the protocol only once on the present session of
    ``connection``, which lasts, if this process holds its lock there. Asks no server.
    """
    if is_direct(connection):
        prepared.prepare_on(connection)


def hold_and_prepare(connection: BaseDatabaseWrapper) -> None:
    """Do so as well on a session without a claim: it holds the lock from now on, unless a pooler is
    in between. Does nothing in a transaction.
    """
    if in_transaction(connection) or not conf.settings().presence_grace_sec:
        return
    _hold_also_on(connection)
    prepare(connection)


def is_cut(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the other end of an idle session has closed it. Asks no server."""
    session = connection.connection
    if session is None or session.closed:
        return session is not None
    if not select.select([session.fileno()], [], [], 0)[0]:
        return False
    try:
        session.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return bool(session.pgconn.status == ConnStatus.BAD)


def lock(connection: BaseDatabaseWrapper) -> bool | None:
    """Hold this worker's lock on the present session of ``connection``. Return whether it does;
    ``None`` where it is a pooler's.
    """
    connection.ensure_connection()
    session = connection.connection
    if session in _sessions:
        return _sessions[session]
    is_held: bool | None
    [(is_held,)] = fetch(
        connection,
        statements.lock(),
        {"worker": worker_id(), "backend_pid": session.info.backend_pid},
    )
    if is_held is not False:
        _sessions[session] = is_held
    return is_held


presence = Presence()


def hold_on_claim(sender: object, lease: Lease | None = None, **kwargs: Any) -> None:
    """Hold the lock on the session of a claim as well; a receiver of ``job_claimed`` and
    ``jobs_claimed``. One session that is cut, or a heartbeat that finds no free connection, is then
    no evidence of death.
    """
    leases = [lease] if lease is not None else kwargs["leases"]
    if conf.settings().presence_grace_sec:
        _hold_also_on(connections[leases[0]._holding.alias])


def hold_on_own_session(sender: object, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Hold it on each of the package's own sessions, such as the one that listens; a receiver of
    Django's ``connection_created``.
    """
    is_own = getattr(connection, "jobreaper_heartbeat", False)
    if is_own and presence.is_noted(connection.alias):
        _hold_also_on(connection)


def _hold_also_on(connection: BaseDatabaseWrapper) -> None:
    if not is_settled(connection):
        with suppress(Error):
            lock(connection)


def _start_afresh() -> None:
    """Give a forked child a presence of its own, and let go of the parent's sessions: the server
    frees the parent's lock when nobody has their sockets any more.
    """
    global presence
    nothing = os.open(os.devnull, os.O_RDWR)
    for session in list(_sessions):
        with suppress(Exception):
            os.dup2(nothing, session.fileno(), inheritable=False)
    os.close(nothing)
    _sessions.clear()
    presence = Presence()
    heartbeat.heart.accompany(presence)


os.register_at_fork(after_in_child=_start_afresh)
