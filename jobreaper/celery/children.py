"""Watching the pool's children: what a dead child held is given back within moments.

The main process waits for the child itself, by a pidfd in Celery's event loop, since Celery
declares a child lost only after ten seconds. Without pidfds (not Linux) or an event loop
(transports other than AMQP and Redis) it is Celery's word that counts, and then the lease.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import Final

from django.db import Error, connections
from kombu.asynchronous import get_event_loop

from jobreaper import worker_lost
from jobreaper.celery.dispatcher import dispatch_job
from jobreaper.tables import job_tables
from jobreaper.worker import id_of_child

logger = logging.getLogger(__name__)

_watched: Final[dict[int, int]] = {}


def watch(pid: int) -> None:
    """Give back what the child ``pid`` holds as soon as it ends; a child already watched and the
    process itself (pools without children) are passed over.
    """
    loop = get_event_loop()
    if loop is None or pid in _watched or pid == os.getpid() or not hasattr(os, "pidfd_open"):
        return
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        give_back(pid, "gone")
        return
    except OSError as error:
        logger.warning("cannot watch child %s: %s", pid, error)
        return
    _watched[pid] = pidfd
    loop.add_reader(pidfd, _ended, loop, pid)


def give_back(pid: int, how: str) -> None:
    """Take the leases of the dead child ``pid`` back and send the jobs that are due to Celery.

    Never raises: what cannot be given back now is reaped when its lease runs out.
    """
    worker = id_of_child(pid)
    try:
        for table in job_tables():
            if not table.can_be_leased:
                continue
            for job in worker_lost.give_back(table, worker, how):
                if job.fail_code is None:
                    dispatch_job(table.model, job.pk)
    except Error:
        logger.exception("leases of %s could not be given back; they will run out", worker)
    finally:
        # Children forked from now on must not inherit this connection.
        connections.close_all()


def _ended(loop: object, pid: int) -> None:
    pidfd = _watched.pop(pid)
    loop.remove_reader(pidfd)  # type: ignore[attr-defined]
    how = _how_it_ended(pidfd)
    os.close(pidfd)
    give_back(pid, how)


def _how_it_ended(pidfd: int) -> str:
    try:
        status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:  # the pool was faster
        return "ended"
    if status is None:
        return "ended"
    if status.si_code == os.CLD_EXITED:
        return f"exited with {status.si_status}"
    return f"killed by {signal.Signals(status.si_status).name}"
