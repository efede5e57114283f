"""Watching the pool's children: what a dead child held is given back within moments.

The main process waits for the child itself, by a pidfd in Celery's event loop. Celery looks when
the child's end of a pipe closes, which is a moment too early, and else every five seconds; so it is
told to look once the child is dead, and another takes its place. Without pidfds (not Linux) or an
event loop (transports other than AMQP and Redis) it is Celery's word that counts, and then the
lease.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final

from billiard.common import human_status
from celery.signals import worker_ready
from django.db import Error, connections
from kombu.asynchronous import get_event_loop

from jobreaper import worker_lost
from jobreaper.celery.dispatcher import dispatch_job
from jobreaper.db import in_words
from jobreaper.tables import job_tables
from jobreaper.worker import id_of_child

logger = logging.getLogger(__name__)

# The row may be locked until the server has noticed that the child's transaction is dead.
RETRIES: Final = 3
RETRY_SEC: Final = 1.0

# PostgreSQL carries out a claim that a child has sent, even where the child dies meanwhile.
LOOK_AGAIN_SEC: Final = 1.0

_watched: Final[dict[int, int]] = {}

# Why a child is killed, where its signal does not say so.
_why: Final[dict[int, str]] = {}

# Called to put a new child in a dead one's place.
_replace_the_dead: Callable[[], object] | None = None


def _know_pool(sender: Any, **kwargs: Any) -> None:
    global _replace_the_dead
    _replace_the_dead = getattr(sender.pool, "maintain_pool", None)


worker_ready.connect(_know_pool, weak=False, dispatch_uid="jobreaper.children")


def watch(pid: int) -> None:
    """Give back what the child ``pid`` holds as soon as it ends; a child already watched and the
    process itself (pools without children) are passed over.
    """
    loop = get_event_loop()
    if loop is None or pid == os.getpid() or not hasattr(os, "pidfd_open"):
        return
    if pid not in _watched:
        try:
            _watched[pid] = os.pidfd_open(pid)
        except OSError as error:  # gone, and Celery says so by itself
            logger.debug("cannot watch child %s: %s", pid, error)
    # A loop that lost its broker starts anew, without the children it had watched.
    for child, pidfd in _watched.items():
        if pidfd not in loop.readers:
            loop.add_reader(pidfd, _ended, loop, child)


def condemn(pid: int, why: str) -> None:
    """Give back what the child ``pid`` holds, which is about to be killed. What it claims until it
    is dead is given back for the same reason.
    """
    if pid in _watched:
        _why[pid] = why
    give_back(pid, why)


def bury(pid: int, how: str) -> None:
    """Give back what the killed child ``pid`` held, and what it was about to claim."""
    give_back(pid, how)
    loop = get_event_loop()
    if loop is not None:
        loop.call_later(LOOK_AGAIN_SEC, give_back, pid, how)


def give_back(pid: int, how: str, retries: int = RETRIES) -> None:
    """Take the leases of the dead child ``pid`` back and send the jobs that are due to Celery.

    Never raises: what cannot be given back, now or in a few seconds, is reaped when its lease runs
    out.
    """
    worker = id_of_child(pid)
    try:
        for table in job_tables():
            if not table.can_be_leased:
                continue
            for job in worker_lost.give_back(table, worker, how):
                if job.fail_code is None:
                    dispatch_job(table.model, job.pk, pooled=False)
    except Error as error:
        loop = get_event_loop()
        if retries and loop is not None:
            loop.call_later(RETRY_SEC, give_back, pid, how, retries - 1)
        else:
            said = in_words(error)
            logger.error("leases of %s could not be given back and will run out: %s", worker, said)
    finally:
        # Children forked from now on must not inherit this connection.
        connections.close_all()


def _ended(loop: Any, pid: int) -> None:
    pidfd = _watched.pop(pid)
    why = _why.pop(pid, None)
    loop.remove_reader(pidfd)
    try:
        status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:  # Celery was faster, and has said so of all but those it killed
        if why is not None:
            bury(pid, why)
        return
    finally:
        os.close(pidfd)
    if status is not None:
        if status.si_code == os.CLD_EXITED:
            give_back(pid, human_status(status.si_status))
        else:
            bury(pid, why or human_status(-status.si_status))
        if _replace_the_dead is not None:
            _replace_the_dead()
