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
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

from billiard.common import human_status
from celery.signals import worker_ready

from jobreaper import worker_lost
from jobreaper.celery.dispatcher import dispatch_job
from jobreaper.db import in_words, is_lost
from jobreaper.heartbeat import bounded_connection
from jobreaper.tables import JobTable, job_tables
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

_loop: Any = None


def _know_worker(sender: Any, **kwargs: Any) -> None:
    global _replace_the_dead, _loop
    _replace_the_dead = getattr(sender.pool, "maintain_pool", None)
    _loop = sender.hub
    if _loop is not None:
        _loop.on_close.add(_watch_on)


worker_ready.connect(_know_worker, weak=False, dispatch_uid="jobreaper.children")


def watch(pid: int) -> None:
    """Give back what the child ``pid`` holds as soon as it ends; a child already watched and the
    process itself (pools without children) are passed over.
    """
    if _loop is None or pid in _watched or pid == os.getpid() or not hasattr(os, "pidfd_open"):
        return
    try:
        _watched[pid] = os.pidfd_open(pid)
    except OSError as error:  # gone, and Celery says so by itself
        logger.debug("cannot watch child %s: %s", pid, error)
    else:
        _listen(pid)


def _listen(pid: int) -> None:
    _loop.add_reader(_watched[pid], _ended, pid)


def _watch_on(loop: Any) -> None:
    """See to it that a loop that is emptied, having lost its broker, hears of the children again
    when it has another.
    """

    def listen_again() -> None:
        for pid, pidfd in _watched.items():
            if pidfd not in loop.readers:
                _listen(pid)

    loop.call_later(0, listen_again)


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
    if _loop is not None:
        _loop.call_later(LOOK_AGAIN_SEC, give_back, pid, how)


def give_back(pid: int, how: str, retries: int = RETRIES) -> None:
    """Take the leases of the dead child ``pid`` back and send the jobs that are due to Celery.

    Never raises: what cannot be given back, now or in a few seconds, is reaped when its lease runs
    out.
    """
    worker = id_of_child(pid)
    by_alias = defaultdict(list)
    for table in job_tables():
        if table.can_be_leased:
            by_alias[table.alias].append(table)
    errors = []
    for alias, tables in by_alias.items():
        errors += _give_back(alias, tables, worker, how)
    if not errors:
        return
    if retries and _loop is not None:
        _loop.call_later(RETRY_SEC, give_back, pid, how, retries - 1)
    else:
        said = "; ".join(errors)
        logger.error("leases of %s could not be given back and will run out: %s", worker, said)


def _give_back(alias: str, tables: Iterable[JobTable], worker: str, how: str) -> list[str]:
    """Give back what the worker held in these tables of one database; return what went wrong."""
    errors = []
    try:
        # The worker does nothing else meanwhile. And children forked afterwards inherit none.
        with bounded_connection(alias) as connection:
            for table in tables:
                try:
                    for job in worker_lost.give_back(table, worker, how):
                        if job.fail_code is None:
                            dispatch_job(table.model, job.pk, pooled=False)
                # One table's trouble is no other's, whatever it is.
                except Exception as error:
                    errors.append(f"{table.name}: {table.in_words(error)}")
                    if is_lost(connection):
                        break
    except Exception as error:
        errors.append(in_words(error))
    return errors


def _ended(pid: int) -> None:
    pidfd = _watched.pop(pid)
    why = _why.pop(pid, None)
    _loop.remove_reader(pidfd)
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
