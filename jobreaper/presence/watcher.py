"""The other half: who is gone, and taking back what they held.

One process at a time looks, the one that holds the watcher's lock. The others ask for it, and one
of them has it a moment after the watcher is gone itself. A few of them ask once a second each, many
less often, so that together they ask a few times a second.
"""

from __future__ import annotations

import logging
import random
import sys
import weakref
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Final, NamedTuple

from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, sql
from jobreaper.db import fetch, in_words
from jobreaper.db.own import own_connection
from jobreaper.identity import local_clock, worker_id
from jobreaper.presence import statements
from jobreaper.protocol.holding import Holding
from jobreaper.reaper import dead_workers
from jobreaper.reaper.hold import common_silence, reason_to_hold
from jobreaper.states import Reason
from jobreaper.tables import job_tables

logger = logging.getLogger("jobreaper.presence")

LOOK_SEC: Final = 1.0
# How often all that do not look ask together, unless each would then pause for too long.
ASKS_PER_SEC: Final = 4
LONGEST_PAUSE_SEC: Final = 10.0
# A watcher that was not heard of for so long stands still, for example stopped by SIGSTOP.
STILL_SEC: Final = 3.0


class Silent(NamedTuple):
    """A worker whose lock is free, and for how many seconds it was seen to be; and whether it had
    been told to stop.
    """

    worker: str
    host: str
    leases: int
    was_stopping: bool
    silent_sec: float


def look(connection: BaseDatabaseWrapper) -> tuple[int, list[Silent]]:
    """Return how many workers are here, and those whose lock is free; note since when."""
    rows = fetch(connection, statements.look(), {"worker": worker_id()})
    return (rows[0][-1] if rows else 0), [Silent(*row[:-1]) for row in rows]


def gone(here: int, silent: Sequence[Silent]) -> list[Silent]:
    """Return which of the silent workers are gone: their lock has been free for the grace. Where
    most of them fell silent together the cause is not theirs, and they have longer to come back.
    """
    settings = conf.settings()
    common = common_silence(
        [each.silent_sec for each in silent],
        leases=[max(1, each.leases) for each in silent],
        well=here,
        within_sec=settings.heartbeat_sec,
    )
    grace_sec = settings.presence_grace_sec
    if common:
        grace_sec = max(grace_sec, settings.recovery_grace_sec)
    return [each for each in silent if each.silent_sec >= grace_sec]


def take_back(connection: BaseDatabaseWrapper, worker: Silent) -> int | None:
    """Take back every lease of a worker that is gone, and return how many there were; ``None``
    where it is here after all.

    All of it is one transaction under the worker's own lock, so that it cannot come back in
    between.

    Raises:
        django.db.Error: some of its jobs could not be taken back; nothing was changed.
    """
    how = f"its sessions ended {worker.silent_sec:.0f} s ago"
    reason = Reason.WORKER_LOST
    if worker.was_stopping:
        how, reason = f"it was told to stop, and {how}", Reason.WORKER_STOPPED
    taken = []
    count = 0
    with transaction.atomic(using=connection.alias):
        [(is_gone,)] = fetch(connection, statements.gone(), {"worker": worker.worker})
        if not is_gone:
            return None
        for table in job_tables():
            if table.can_be_leased and table.alias == connection.alias:
                jobs = dead_workers.give_back(table, worker.worker, how, reason)
                taken += [table] if jobs else []
                count += len(jobs)
        with connection.cursor() as cursor:
            cursor.execute(
                sql.render("statements/presence_taken"), {"worker": worker.worker, "taken": count}
            )
    for table in taken:
        # It wakes idle workers, and is worth no more than that.
        with suppress(Error), connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, '')", [table.name])
    return count


def take_back_from_gone(connection: BaseDatabaseWrapper) -> int:
    """Look for workers that are gone, take back what they held, and return how many leases."""
    taken = 0
    lost = gone(*look(connection))
    if lost and (reason := reason_to_hold(connection)):
        logger.info("no leases are taken back: %s", reason)
        return 0
    for worker in lost:
        try:
            count = take_back(connection, worker)
        except Error as error:
            # The lease decides, or the next look.
            logger.warning("cannot take back the leases of %s: %s", worker.worker, in_words(error))
            continue
        if count is not None:
            taken += count
            logger.warning(
                "%s is gone: %d leases taken back %.1f s after its sessions ended",
                worker.worker,
                count,
                worker.silent_sec,
            )
    return taken


def _take_back_apart(alias: str) -> None:
    """Do so on a connection of this thread's own: it may take a while, and beats must not wait."""
    try:
        take_back_from_gone(own_connection(alias))
    except Error as error:
        logger.warning("cannot look for workers that are gone: %s", in_words(error))
    finally:
        connections.close_all()


def pause_sec(asking: int) -> float:
    """Return for how long one of so many that ask to be the watcher waits until it asks again."""
    evenly_sec = min(max(LOOK_SEC, asking / ASKS_PER_SEC), LONGEST_PAUSE_SEC)
    return evenly_sec * random.uniform(0.75, 1.25)


class Watcher:
    """Looks once a second, where no other process does. A companion of the heartbeat thread."""

    def __init__(self, aliases: Iterable[str]) -> None:
        # When it looks or asks again, by alias.
        self._next = dict.fromkeys(aliases, 0.0)
        self._taking: Thread | None = None
        self._elected: weakref.WeakSet[Any] = weakref.WeakSet()

    def next_turn(self, held: Collection[Holding]) -> float | None:
        """Return when it looks again, ``None`` where presence is switched off."""
        is_on = conf.settings().presence_grace_sec
        return min(self._next.values(), default=None) if is_on else None

    def take_turn(self, held: Collection[Holding]) -> None:
        """Look, where it is time for it."""
        for alias, at in self._next.items():
            if at <= local_clock():
                self._next[alias] = local_clock() + LOOK_SEC
                self._see_to(alias)

    def _see_to(self, alias: str) -> None:
        connection = own_connection(conf.settings().presence_alias(alias))
        is_found = self._is_to_look(alias, connection) and gone(*look(connection))
        if is_found and not self._is_taking():
            self._taking = Thread(
                target=_take_back_apart, args=[alias], name="jobreaper-watcher", daemon=True
            )
            self._taking.start()

    def idle(self) -> None:
        """Nothing: it looks as long as its process runs."""

    def _is_taking(self) -> bool:
        return self._taking is not None and self._taking.is_alive()

    def _is_to_look(self, alias: str, connection: BaseDatabaseWrapper) -> bool:
        """Return whether this process is the one that looks, or that one stands still."""
        connection.ensure_connection()
        session = connection.connection
        if session in self._elected:
            return True
        pid = session.info.backend_pid
        params = {"backend_pid": pid, "still_sec": STILL_SEC}
        [(is_elected, nobody_looks, _, asking)] = fetch(connection, statements.elect(), params)
        if is_elected:
            self._elected.add(session)
        else:
            # Through a pooler, nobody can be elected or counted, and many may look.
            pause = pause_sec(sys.maxsize if is_elected is None else asking)
            self._next[alias] = local_clock() + pause
        return bool(is_elected or nobody_looks)
