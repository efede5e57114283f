"""A dead worker is noticed in seconds, whatever the length of its lease.

Each worker holds an advisory lock on its own sessions. When its process dies, the kernel closes the
sockets and PostgreSQL frees the lock within milliseconds. A watcher looks every second; a worker
whose lock has been free for ``PRESENCE_GRACE_SEC`` is gone, and its leases are taken back.

``here``    the worker's half: holding the lock, and saying so in ``jobreaper_workers``.
``watcher`` the other half: who is gone, and taking back what they held.

Nothing in the core knows of it. Silence that has another cause (a process that is frozen or busy, a
network that drops everything) leaves the lock where it is, and then the lease decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error
from django.db.backends.signals import connection_created

from jobreaper import conf, signals
from jobreaper.db import connection_for, in_words
from jobreaper.presence import here
from jobreaper.presence.watcher import Watcher, look, take_back_from_gone
from jobreaper.protocol import heartbeat
from jobreaper.states import WorkerKind
from jobreaper.tables import by_alias, job_tables

logger = logging.getLogger("jobreaper.presence")


def connect() -> None:
    """Have each process that holds leases say so; called once, at start-up."""
    heartbeat.heart.accompany(here.presence)
    connection_created.connect(here.hold_on_own_session, dispatch_uid="jobreaper.presence")
    for claimed in (signals.job_claimed, signals.jobs_claimed):
        claimed.connect(here.hold_on_claim, dispatch_uid=signals.OwnReceiver("presence"))


def serve(kind: WorkerKind, runs: str | None = None) -> None:
    """Be seen from now on, and look for others that are gone; for a process that runs for long."""
    here.presence.announce(kind, _aliases(), runs)
    watch()


def introduce(kind: WorkerKind, runs: str | None = None) -> None:
    """Say what this process is, for when it holds leases; it is not seen before."""
    here.presence.announce(kind, (), runs)


def watch() -> None:
    """Look for workers that are gone, from now on, on the heartbeat thread."""
    heartbeat.heart.accompany(Watcher(_aliases()))


def look_once() -> int:
    """Look for workers that are gone, for a process that does so once: where one is silent, again
    after the grace. Return how many leases were taken back; what goes wrong is left to the leases.
    """
    taken = 0
    grace_sec = conf.settings().presence_grace_sec
    for alias in _aliases() if grace_sec else ():
        connection = connection_for(alias)
        try:
            _, silent = look(connection)
            if silent:
                time.sleep(max(0.0, grace_sec - silent[0].silent_sec))
                taken += take_back_from_gone(connection)
        except Error as error:
            logger.warning("cannot look for workers that are gone: %s", in_words(error))
    return taken


def _aliases() -> list[str]:
    return sorted(by_alias(table for table in job_tables() if table.can_be_leased))


@contextmanager
def served(kind: WorkerKind, runs: str | None = None) -> Iterator[None]:
    """Do so until the block ends."""
    serve(kind, runs)
    try:
        yield
    finally:
        leave()


def stop_soon() -> None:
    """Say that this process was told to stop: if it is killed before it has given its jobs back,
    they lose no attempt. A signal handler may call this.
    """
    here.presence.stop_soon()


def leave() -> None:
    """Be seen no more."""
    here.presence.leave()
