"""The thread that renews every lease of this process, one statement per table.

It has connections of its own, in autocommit: the work's transaction may last for hours, and a pool
that the work has emptied must not keep a beat waiting. It is a daemon, started by the first lease
and never told to stop, so beats go on while a worker drains.

A lease is lost when the database says so, or when the local clock says that it must have run out
while the database could not be reached. The second is a conclusion, not a fact: beats go on until
the worker has been told, and a beat that still finds the lease keeps it.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, signals
from jobreaper.db import connection_for, fetch_within, no_retries
from jobreaper.tables import JobTable
from jobreaper.worker import local_clock

logger = logging.getLogger(__name__)

# Beats are spread so that a fleet started by one deploy does not beat in step.
JITTER: Final = 0.1
# A skipped or failed beat is tried again well before the next regular one, and not in a busy loop.
RETRY_SHARE: Final = 0.1
SHORTEST_WAIT_SEC: Final = 0.05

# A table locked by a migration must not keep the other tables' beats waiting.
LOCK_TIMEOUT_SEC: Final = 0.5
STATEMENT_TIMEOUT_SEC: Final = 10.0

# libpq's own names; a host that went away without a word is noticed in seconds, not in the quarter
# of an hour that TCP takes. https://www.postgresql.org/docs/current/libpq-connect.html
NETWORK_OPTIONS: Final = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}


class Beat(NamedTuple):
    """What a heartbeat found. ``remaining_sec`` is ``None`` where the row was locked or lost."""

    held: bool
    remaining_sec: float | None
    expires_at: datetime | None
    status: str | None
    epoch: int | None


class Beatable(Protocol):
    """What the thread needs of a lease. ``key`` is its primary key as a statement's parameter."""

    table: JobTable
    alias: str
    key: Any
    epoch: int
    worker: str
    length_sec: float

    @property
    def wants_beats(self) -> bool: ...

    def beaten(self, beat: Beat, sent_at: float) -> None: ...

    def missed(self) -> None: ...


def beat(
    connection: BaseDatabaseWrapper, table: JobTable, leases: Sequence[Beatable]
) -> list[Beat]:
    """Renew ``leases`` of one table in one statement, tell each of them, and return what was found,
    in the order of ``leases``.
    """
    sent_at = local_clock()
    rows = fetch_within(
        connection,
        table.statement("heartbeat"),
        {
            "ids": [lease.key for lease in leases],
            "epochs": [lease.epoch for lease in leases],
            "workers": [lease.worker for lease in leases],
            "policies": conf.settings().policies_json,
        },
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=STATEMENT_TIMEOUT_SEC,
    )
    beats = [Beat(*row) for row in rows]
    for lease, outcome in zip(leases, beats, strict=True):
        lease.beaten(outcome, sent_at)
    return beats


class Heart:
    """The leases of this process and the thread that beats them."""

    def __init__(self) -> None:
        self._leases: set[Beatable] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._next_beat = 0.0

    def add(self, *leases: Beatable) -> None:
        """Beat ``leases`` until they are removed or want no more beats."""
        with self._changed:
            soonest = local_clock() + _interval_sec(leases)
            self._next_beat = min(self._next_beat, soonest) if self._leases else soonest
            self._leases.update(leases)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="jobreaper-heartbeat", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def remove(self, *leases: Beatable) -> None:
        """Stop beating ``leases``."""
        with self._changed:
            self._leases.difference_update(leases)

    def stop(self, timeout_sec: float = 5) -> None:
        """Forget every lease and end the thread, for a process that goes on without it."""
        with self._changed:
            self._leases.clear()
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join(timeout_sec)

    def _run(self) -> None:
        try:
            while leases := self._wait_for_beat():
                everything_renewed = self._beat(leases)
                with self._changed:
                    interval = _interval_sec(leases)
                    if not everything_renewed:
                        interval = max(interval * RETRY_SHARE, SHORTEST_WAIT_SEC)
                    self._next_beat = local_clock() + interval
        finally:
            connections.close_all()

    def _wait_for_beat(self) -> list[Beatable]:
        """Return the leases to beat once it is time; none when this thread shall end."""
        with self._changed:
            while self._thread is threading.current_thread():
                self._leases = {lease for lease in self._leases if lease.wants_beats}
                if not self._leases:
                    connections.close_all()
                    self._changed.wait()
                elif (wait := self._next_beat - local_clock()) > 0:
                    self._changed.wait(wait)
                else:
                    return list(self._leases)
        return []

    def _beat(self, leases: Iterable[Beatable]) -> bool:
        """Beat every table's leases; return whether each lease was renewed or is gone."""
        tables = defaultdict(list)
        for lease in leases:
            tables[lease.alias, lease.table].append(lease)
        renewed = True
        for (alias, table), held in tables.items():
            try:
                beats = beat(own_connection(alias), table, held)
            # One table's trouble must not silence the beats of the others, whatever it is.
            except Exception as error:
                renewed = False
                with suppress(Exception):
                    connections[alias].close()
                for lease in held:
                    lease.missed()
                signals.heartbeat_failed.send_robust(
                    table.model, alias=alias, table=table.name, error=error, leases=len(held)
                )
            else:
                renewed &= all(b.remaining_sec is not None or not b.held for b in beats)
        return renewed


def _interval_sec(leases: Iterable[Beatable]) -> float:
    """Return the seconds to the next beat: ``HEARTBEAT_SEC``, less where a lease is so short that
    it would not survive a late beat.
    """
    shortest = min(lease.length_sec for lease in leases) * conf.RISKY_BEAT_SHARE
    interval = min(conf.settings().heartbeat_sec, shortest) * random.uniform(1 - JITTER, 1)
    return max(interval, SHORTEST_WAIT_SEC)


def own_connection(alias: str) -> BaseDatabaseWrapper:
    """Return this thread's connection to ``alias``, made so that a dead network cannot hold it.

    It comes from no pool: work that has taken every connection must not stop the beats.
    """
    connection = connection_for(alias)
    if not getattr(connection, "jobreaper_heartbeat", False):
        connection = connection.copy(alias)
        options = connection.settings_dict["OPTIONS"]
        options.pop("pool", None)
        for option, value in NETWORK_OPTIONS.items():
            options.setdefault(option, value)
        connection.jobreaper_heartbeat = True  # type: ignore[attr-defined]
        connections[alias] = connection
    return connection


@contextmanager
def bounded_connection(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """Give this thread such a connection until the block ends, where its process cannot wait long
    for what the block does. Nothing is left open afterwards.
    """
    before = connection_for(alias)
    before.close()
    try:
        with no_retries():
            yield own_connection(alias)
    finally:
        connections[alias].close()
        connections[alias] = before


heart = Heart()


def _start_afresh() -> None:
    """Give a forked child a heart of its own: the leases are the parent's, and so is the thread.

    psycopg leaves the parent's connection alone when a child drops it.
    """
    global heart
    heart = Heart()


os.register_at_fork(after_in_child=_start_afresh)
