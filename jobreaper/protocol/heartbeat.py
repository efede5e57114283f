"""The thread that renews all leases of this process, with one statement per table.

It has its own connections, in autocommit: the work's transaction may take hours, and a heartbeat
must not wait for a pool that the work has emptied. It is a daemon thread that the first lease
starts and that nothing stops, so heartbeats continue while a worker shuts down.

A lease is lost when the database says so, or when the local clock says that it must have run out
while the database could not be reached. The second is a conclusion, not a fact: heartbeats continue
until the worker has been told, and a heartbeat that still finds the lease keeps it.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, Protocol

from django.db import connections

from jobreaper import conf
from jobreaper.db import in_words
from jobreaper.db.own import own_connection
from jobreaper.identity import local_clock
from jobreaper.protocol.holding import Holding
from jobreaper.protocol.renewing import beat, beat_between, renew
from jobreaper.tables import JobTable

__all__ = ["Companion", "Heart", "beat", "heart"]

logger = logging.getLogger("jobreaper.heartbeat")

# Jitter, so that workers that were started by one deploy do not send heartbeats in step.
JITTER: Final = 0.1
# A skipped or failed heartbeat is tried again well before the next one, but not in a busy loop.
RETRY_SHARE: Final = 0.1
SHORTEST_WAIT_SEC: Final = 0.05

# A claim waits at most this long for the thread to connect.
LONGEST_CONNECT_SEC: Final = 10.0


class Companion(Protocol):
    """What takes turns on the heartbeat thread and its connections, so as not to need its own."""

    def next_turn(self, held: Collection[Holding]) -> float | None:
        """Return when its next turn is, in seconds of ``local_clock()``; ``None`` for never."""
        ...

    def take_turn(self, held: Collection[Holding]) -> None:
        """Do what is due now. An error costs the connections, and the turn."""
        ...

    def idle(self) -> None:
        """The process has no lease left, and the connections are about to be closed."""
        ...


class Heart:
    """The leases of this process and the thread that renews them.

    The thread has its own connection to each database. If it cannot connect, its process claims
    nothing (``obstacle()``), and the leases are renewed over any other session of the process that
    is not in use at the moment.
    """

    def __init__(self) -> None:
        self._leases: set[Holding] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._next_beat = 0.0
        # When the thread wakes by itself; while it is awake, it needs no call.
        self._wakes_at = 0.0
        # Databases whose connection stays open without leases too.
        self._kept: set[str] = set()
        # Databases to connect to before a claim.
        self._asked: set[str] = set()
        self._connected: set[str] = set()
        # Why the thread has no connection.
        self._obstacles: dict[str, Exception] = {}
        self._companions: list[Companion] = []
        # Nobody has a next turn, and connections that nobody needs are closed.
        self._rests = False

    def accompany(self, companion: Companion) -> None:
        """Give ``companion`` its turns from now on."""
        with self._changed:
            if companion not in self._companions:
                self._companions.append(companion)
            if companion.next_turn(self._leases) is not None:
                self._start()

    def expect(self, companion: Companion, by: float) -> None:
        """Give ``companion`` its turns, the next one at the latest at ``by`` (local clock) or soon
        after: the thread is not woken if it wakes before that anyway.
        """
        with self._changed:
            if companion not in self._companions:
                self._companions.append(companion)
            self._start(wake=by < self._wakes_at)

    def add(self, *leases: Holding) -> None:
        """Renew ``leases`` until they are removed or need no more heartbeats."""
        with self._changed:
            soonest = local_clock() + _interval_sec(leases)
            self._next_beat = min(self._next_beat, soonest) if self._leases else soonest
            self._leases.update(leases)
            # Waking the thread for each of many short jobs would cost more than their leases.
            self._start(wake=self._next_beat < self._wakes_at)

    def beat_by(self, at: float) -> None:
        """Send the next heartbeat at ``at`` (local clock, seconds) if it would come later."""
        with self._changed:
            if self._leases and at < self._next_beat:
                self._next_beat = max(at, local_clock() + SHORTEST_WAIT_SEC)
                self._start(wake=self._next_beat < self._wakes_at)

    def remove(self, *leases: Holding) -> None:
        """Stop renewing ``leases``."""
        with self._changed:
            self._leases.difference_update(leases)

    def keep_connected(self, alias: str) -> None:
        """Keep a connection to ``alias`` even while there are no leases."""
        with self._changed:
            self._kept.add(alias)

    def let_disconnect(self, alias: str) -> None:
        """No longer keep a connection without leases."""
        with self._changed:
            self._kept.discard(alias)
            self._rests = False
            self._changed.notify_all()

    def obstacle(self, alias: str) -> Exception | None:
        """Return why leases in ``alias`` cannot be renewed, if the thread cannot connect. Nothing
        may be claimed then. After a failure, this tries again.
        """
        with self._changed:
            known = alias in self._kept or alias in self._obstacles
            if alias in self._connected or not known:
                return None
            self._asked.add(alias)
            self._start()
            self._changed.wait_for(lambda: alias not in self._asked, LONGEST_CONNECT_SEC)
            return self._obstacles.get(alias)

    def is_hindered(self, alias: str) -> bool:
        """Return whether the last try to connect to ``alias`` failed."""
        return alias in self._obstacles

    def why_not_beating(self) -> list[str]:
        """Return what is wrong if there are leases and no thread that renews them, for probes."""
        thread = self._thread
        is_there = thread is not None and thread.is_alive()
        return ["no thread sends heartbeats"] if self._leases and not is_there else []

    def stop(self, timeout_sec: float = 5) -> None:
        """Forget all leases and stop the thread, for a process that continues without it."""
        with self._changed:
            self._leases.clear()
            self._kept.clear()
            self._obstacles.clear()
            self._connected.clear()
            self._asked.clear()
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join(timeout_sec)

    def _start(self, *, wake: bool = True) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._connected.clear()
            self._thread = threading.Thread(
                target=self._run, name="jobreaper-heartbeat", daemon=True
            )
            self._thread.start()
        if wake:
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while (work := self._wait_for_work()) is not None:
                leases, asked = work
                for alias in asked:
                    self._has_connection(alias)
                if leases and local_clock() >= self._next_beat:
                    self._beat_in_turn(leases)
                for companion in self._companions:
                    self._give_turn(companion, leases)
                self._rests = self._next_turn(leases) is None
                if self._rests:
                    self._rest()
        finally:
            connections.close_all()

    def _beat_in_turn(self, leases: list[Holding]) -> None:
        everything_renewed = self._beat(leases)
        with self._changed:
            interval = _interval_sec(leases)
            if not everything_renewed:
                interval = max(interval * RETRY_SHARE, SHORTEST_WAIT_SEC)
            self._next_beat = local_clock() + interval

    def _give_turn(self, companion: Companion, leases: list[Holding]) -> None:
        turn = companion.next_turn(leases)
        if turn is not None and turn <= local_clock():
            self._let(partial(companion.take_turn, leases))

    def _let(self, act: Callable[[], object]) -> None:
        """Let a companion act. Whatever goes wrong, the beats go on; on new connections, since
        these may be broken.
        """
        try:
            act()
        except Exception as error:
            connections.close_all()
            logger.debug("heartbeat thread: %s", in_words(error))

    def _wait_for_work(self) -> tuple[list[Holding], list[str]] | None:
        """Return the leases once somebody's turn has come, and the databases to connect to at
        once; ``None`` when this thread has to end.
        """
        with self._changed:
            while self._thread is threading.current_thread():
                self._leases = {lease for lease in self._leases if lease.wants_beats}
                held = list(self._leases)
                next_turn = self._next_turn(held)
                if self._asked or (next_turn is not None and next_turn <= local_clock()):
                    return held, list(self._asked)
                if next_turn is None and not self._rests:
                    return [], []
                self._wakes_at = float("inf") if next_turn is None else next_turn
                self._changed.wait(next_turn and next_turn - local_clock())
                self._wakes_at = 0.0
        return None

    def _next_turn(self, held: list[Holding]) -> float | None:
        turns = [companion.next_turn(held) for companion in self._companions]
        turns += [self._next_beat] if held else []
        return min((turn for turn in turns if turn is not None), default=None)

    def _rest(self) -> None:
        """Let go of what is not needed while there is nothing to do."""
        for companion in self._companions:
            self._let(companion.idle)
        self._disconnect()

    def _disconnect(self) -> None:
        for connection in connections.all(initialized_only=True):
            if connection.alias not in self._kept:
                connection.close()
                self._connected.discard(connection.alias)

    def _has_connection(self, alias: str) -> bool:
        """Return whether this thread has its own connection, or can open one now."""
        try:
            own_connection(alias).ensure_connection()
        except Exception as error:
            is_new = alias not in self._obstacles
            with self._changed:
                self._obstacles[alias] = error
                self._connected.discard(alias)
                self._asked.discard(alias)
                self._changed.notify_all()
            if is_new:
                logger.warning(
                    "heartbeats have no connection to %s, and nothing is claimed: %s; leases are "
                    "renewed over the process's other connections while these are not in use",
                    alias,
                    in_words(error),
                )
            return False
        with self._changed:
            self._obstacles.pop(alias, None)
            self._connected.add(alias)
            self._asked.discard(alias)
            self._changed.notify_all()
        return True

    def _beat(self, leases: Iterable[Holding]) -> bool:
        """Renew the leases of every table. Return whether each lease was renewed or is gone."""
        renewed = True
        for (alias, table, _), held in _by_place(leases).items():
            send = None
            if not self._has_connection(alias):
                send = partial(beat_between, self._obstacles[alias])
            renewed &= renew(partial(own_connection, alias), alias, table, held, send)
        return renewed


def _by_place(leases: Iterable[Holding]) -> dict[tuple[str, JobTable, str], list[Holding]]:
    """Return the leases to renew by database, table and session, and tell the holders of those that
    are lost.
    """
    tables = defaultdict(list)
    for lease in leases:
        if lease.loss is None:
            tables[lease.alias, lease.table, lease.session].append(lease)
        else:
            lease.announce_loss()
    return tables


def _interval_sec(leases: Iterable[Holding]) -> float:
    """Return the seconds to the next heartbeat: ``HEARTBEAT_SEC``, or less if a lease is so short
    that it would not survive a late heartbeat.
    """
    shortest = min(lease.length_sec for lease in leases) * conf.RISKY_BEAT_SHARE
    interval = min(conf.settings().heartbeat_sec, shortest) * random.uniform(1 - JITTER, 1)
    return max(interval, SHORTEST_WAIT_SEC)


heart = Heart()


def _start_afresh() -> None:
    """Give a forked child its own heart, because the leases and the thread belong to the parent.

    psycopg does not close the parent's connection when a child drops it.
    """
    global heart
    heart = Heart()


os.register_at_fork(after_in_child=_start_afresh)
