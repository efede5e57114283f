"""The worker id of this process, and the clock that it uses for its own waits."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import socket
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

logger = logging.getLogger("jobreaper.worker")

# CLOCK_BOOTTIME keeps running while the machine sleeps, as the database's clock does. On Linux,
# Python's monotonic clock does not, and a lease would seem younger than it is.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)

_boot_token = secrets.token_hex(4)


def local_clock() -> float:
    """Return seconds on a monotonic clock, which counts suspended time if the system can."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


@cache
def machine() -> str:
    """Return what tells apart the clocks that ``local_clock()`` reads: all processes of a machine
    share one from its start to its end where that can be known, and each has its own elsewhere.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return worker_id()


def worker_id() -> str:
    """Return ``<hostname>:<pid>:<boot token>``.

    Every process has its own token, so a container that restarts with the same host name and pid is
    never mistaken for its predecessor.
    """
    return _id(os.getpid(), _boot_token)


def id_of_child(pid: int) -> str:
    """Return the worker id of a process that this one forked, dead or alive."""
    return _id(pid, _token_of_child(pid))


class forks_end_here:
    """End a process that the block forked and did not end: it must not continue as a second
    worker, with the jobs and the connections of the first.
    """

    # Not a generator, which would take three times as long around each job.
    __slots__ = ("_pid",)

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if os.getpid() != self._pid:
            if not isinstance(error, SystemExit | None):
                logger.error("a process forked by a job's function failed", exc_info=error)
            end_process(error)


def end_process(error: BaseException | None) -> NoReturn:
    """End this process as ``error`` says, without waiting for its threads."""
    code: object = error is not None
    if isinstance(error, SystemExit):
        code = error.code
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


def _id(pid: int, token: str) -> str:
    return f"{socket.gethostname()}:{pid}:{token}"


def _token_of_child(pid: int) -> str:
    # Derived from the parent's token, so that the parent can name a dead child.
    return hashlib.sha256(f"{_boot_token}:{pid}".encode()).hexdigest()[: len(_boot_token)]


def _become_child() -> None:
    global _boot_token
    _boot_token = _token_of_child(os.getpid())


os.register_at_fork(after_in_child=_become_child)
