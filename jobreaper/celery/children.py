"""Watching the pool's children: the jobs of a dead child are given back at once.

The main process waits for the child itself, with a pidfd in Celery's event loop. Celery checks when
the child's end of a pipe closes, which is a moment too early, and otherwise every five seconds. So
it is made to check once the child is dead, and starts another child. Without pidfds (not Linux) or
an event loop (transports other than AMQP and Redis), Celery reports the death, or the lease runs
out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final

from billiard.common import human_status
from celery.signals import worker_ready

from jobreaper.identity import id_of_child
from jobreaper.reaper import dead_workers

logger = logging.getLogger(__name__)

# The row may be locked until the server notices that the child's transaction is dead.
RETRIES: Final = 3
RETRY_SEC: Final = 1.0

# PostgreSQL carries out a claim that a child has sent, even if the child dies meanwhile.
LOOK_AGAIN_SEC: Final = 1.0

_watched: Final[dict[int, int]] = {}

# Why a child is killed, if its signal does not say so.
_why: Final[dict[int, str]] = {}

# Called to replace a dead child.
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
    """Give back the jobs of the child ``pid`` as soon as it ends. A child that is watched already
    and the process itself (in pools without children) are skipped.
    """
    if _loop is None or pid in _watched or pid == os.getpid() or not hasattr(os, "pidfd_open"):
        return
    try:
        _watched[pid] = os.pidfd_open(pid)
    except OSError as error:  # it has ended, and Celery reports it
        logger.debug("cannot watch child %s: %s", pid, error)
    else:
        _listen(pid)


def _listen(pid: int) -> None:
    _loop.add_reader(_watched[pid], _ended, pid)


def _watch_on(loop: Any) -> None:
    """Make sure that a loop that was emptied after losing its broker watches the children again
    once it is reconnected.
    """

    def listen_again() -> None:
        for pid, pidfd in _watched.items():
            if pidfd not in loop.readers:
                _listen(pid)

    loop.call_later(0, listen_again)


def give_back_before_kill(pid: int, why: str) -> None:
    """Give back the jobs of the child ``pid``, which is about to be killed. Jobs that it still
    claims until it is dead are given back for the same reason.
    """
    if pid in _watched:
        _why[pid] = why
    give_back(pid, why)


def give_back_after_kill(pid: int, how: str) -> None:
    """Give back the jobs of the killed child ``pid``, and those that it was about to claim."""
    give_back(pid, how)
    if _loop is not None:
        _loop.call_later(LOOK_AGAIN_SEC, give_back, pid, how)


def give_back(pid: int, how: str, retries: int = RETRIES) -> None:
    """Take the leases of the dead child ``pid`` back and send the jobs that are due to Celery.

    Never raises: jobs that cannot be given back, now or in a few seconds, are reaped when their
    leases run out.
    """
    worker = id_of_child(pid)
    errors = dead_workers.give_back_everywhere(worker, how)
    if not errors:
        return
    if retries and _loop is not None:
        _loop.call_later(RETRY_SEC, give_back, pid, how, retries - 1)
    else:
        said = "; ".join(errors)
        logger.error("leases of %s could not be given back and will run out: %s", worker, said)


def _ended(pid: int) -> None:
    pidfd = _watched.pop(pid)
    why = _why.pop(pid, None)
    _loop.remove_reader(pidfd)
    try:
        status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:  # Celery was faster, and has reported it unless it killed the child
        if why is not None:
            give_back_after_kill(pid, why)
        return
    finally:
        os.close(pidfd)
    if status is not None:
        if status.si_code == os.CLD_EXITED:
            give_back(pid, human_status(status.si_status))
        else:
            give_back_after_kill(pid, why or human_status(-status.si_status))
        if _replace_the_dead is not None:
            _replace_the_dead()
