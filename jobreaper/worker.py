"""Who this process is, and the clock it may trust for its own waiting."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import time
from typing import Final

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


def _id(pid: int, token: str) -> str:
    return f"{socket.gethostname()}:{pid}:{token}"


def _token_of_child(pid: int) -> str:
    # Drawn from the parent's, so that the parent can name its dead.
    return hashlib.sha256(f"{_boot_token}:{pid}".encode()).hexdigest()[: len(_boot_token)]


def _become_child() -> None:
    global _boot_token
    _boot_token = _token_of_child(os.getpid())


os.register_at_fork(after_in_child=_become_child)
