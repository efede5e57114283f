"""Whether the worker is shutting down, as its main process and each of its children can tell."""

from __future__ import annotations

import mmap
import time
from typing import Any, Final

from celery.signals import worker_init, worker_shutting_down

LOOK_EVERY_SEC: Final = 0.02

# Shared by every process forked from the one that imported this module: a child that is stopped by
# a signal must know whether a deploy is the reason, which gives the attempt back, or the job is.
_begun: Final = mmap.mmap(-1, 1)


def has_begun(within_sec: float = 0) -> bool:
    """Return whether the worker was told to shut down, warm or cold, or is told so within this
    time: systemd, for one, tells all its processes at once.
    """
    ends_at = time.monotonic() + within_sec
    while not _begun[0] and time.monotonic() < ends_at:
        time.sleep(LOOK_EVERY_SEC)
    return _begun[0] != 0


def begin(**kwargs: Any) -> None:
    """Tell every process of the worker."""
    _begun[0] = 1


def _reset(**kwargs: Any) -> None:
    _begun[0] = 0


worker_init.connect(_reset, weak=False, dispatch_uid="jobreaper.shutdown")
worker_shutting_down.connect(begin, weak=False, dispatch_uid="jobreaper.shutdown")
