"""Who this process is, and the clock it may trust for its own waiting."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

logger = logging.getLogger(__name__)

# CLOCK_BOOTTIME goes on while the machine sleeps, as the database's clock does. Python's monotonic
# clock stands still on Linux meanwhile, and a lease would seem younger than it is.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)

_boot_token = secrets.token_hex(4)


def local_clock() -> float:
    """Return seconds on a clock that never steps and counts suspended time where it can."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def worker_id() -> str:
    """Return ``<hostname>:<pid>:<boot token>``.

    The token differs from process to process, so a container restarted with the same host name and
    pid is never taken for its predecessor.
    """
    return _id(os.getpid(), _boot_token)


def id_of_child(pid: int) -> str:
    """Return the worker id of a process that this one has forked, alive or not."""
    return _id(pid, _token_of_child(pid))


@contextmanager
def forks_end_here() -> Iterator[None]:
    """End a process that the block forked and did not end itself: it must not go on as a second
    worker, with the jobs and the connections of the first.
    """
    pid = os.getpid()
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        if os.getpid() != pid:
            _end_process(error)


def _end_process(error: BaseException | None) -> NoReturn:
    code: object = error is not None
    if isinstance(error, SystemExit):
        code = error.code
    elif error is not None:
        logger.error("a process forked by a job's function failed", exc_info=error)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


def _id(pid: int, token: str) -> str:
    return f"{socket.gethostname()}:{pid}:{token}"


def _token_of_child(pid: int) -> str:
    # Drawn from the parent's, so that the parent can name its dead.
    return hashlib.sha256(f"{_boot_token}:{pid}".encode()).hexdigest()[: len(_boot_token)]


def _become_child() -> None:
    global _boot_token
    _boot_token = _token_of_child(os.getpid())


os.register_at_fork(after_in_child=_become_child)
