"""Whether the worker is shutting down, for its main process and its children."""

from __future__ import annotations

import math
import mmap
import time
from typing import Any, Final

from celery.signals import worker_init, worker_shutting_down

LOOK_EVERY_SEC: Final = 0.02

# Until when the shutdown counts, on a clock that all processes of a machine share. All processes
# forked from the one that imported this module share the memory. A child that is stopped by a
# signal has to know whether the reason is a deploy, which does not cost an attempt, or the job.
_until: Final = memoryview(mmap.mmap(-1, 8)).cast("d")


def has_begun(within_sec: float = 0) -> bool:
    """Return whether the worker was told to shut down, warm or cold, or is told within this time:
    systemd, for example, tells all its processes at once.
    """
    ends_at = time.monotonic() + within_sec
    while _until[0] <= (now := time.monotonic()) < ends_at:
        time.sleep(LOOK_EVERY_SEC)
    return _until[0] > now


def begin(for_sec: float = math.inf, **kwargs: Any) -> None:
    """Tell every process of the worker. After ``for_sec``, this no longer counts."""
    _until[0] = max(_until[0], time.monotonic() + for_sec)


def reset(**kwargs: Any) -> None:
    """Reset, when a worker starts."""
    _until[0] = 0


worker_init.connect(reset, weak=False, dispatch_uid="jobreaper.shutdown")
worker_shutting_down.connect(begin, weak=False, dispatch_uid="jobreaper.shutdown")
