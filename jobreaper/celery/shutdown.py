"""Whether the worker is shutting down, as its main process and each of its children can tell."""

from __future__ import annotations

import math
import mmap
import time
from typing import Any, Final

from celery.signals import worker_init, worker_shutting_down

LOOK_EVERY_SEC: Final = 0.02

# Until when the word holds, on a clock that all processes of a machine share. The memory is shared
# by every process forked from the one that imported this module: a child that is stopped by a
# signal must know whether a deploy is the reason, which gives the attempt back, or the job is.
_until: Final = memoryview(mmap.mmap(-1, 8)).cast("d")


def has_begun(within_sec: float = 0) -> bool:
    """Return whether the worker was told to shut down, warm or cold, or is told so within this
    time: systemd, for one, tells all its processes at once.
    """
    ends_at = time.monotonic() + within_sec
    while _until[0] <= (now := time.monotonic()) < ends_at:
        time.sleep(LOOK_EVERY_SEC)
    return _until[0] > now


def begin(for_sec: float = math.inf, **kwargs: Any) -> None:
    """Tell every process of the worker; after ``for_sec`` that counts as not said."""
    _until[0] = max(_until[0], time.monotonic() + for_sec)


def reset(**kwargs: Any) -> None:
    """Take the word back: a worker starts."""
    _until[0] = 0


worker_init.connect(reset, weak=False, dispatch_uid="jobreaper.shutdown")
worker_shutting_down.connect(begin, weak=False, dispatch_uid="jobreaper.shutdown")
