"""How much a worker process may do and hold before another one takes its place."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Final

from jobreaper.identity import local_clock

# Memory is looked at this often.
LOOK_SEC: Final = 1.0

_STATM: Final = Path("/proc/self/statm")


def memory() -> int:
    """Return how many bytes of memory this process holds; where the system does not say so, the
    most that it ever held.
    """
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


class Wear:
    """Whether a worker has done enough: ``max_jobs``, or more memory than ``max_memory`` bytes.
    ``None`` is no limit.
    """

    def __init__(self, max_jobs: int | None = None, max_memory: int | None = None) -> None:
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._next_look = 0.0

    def room(self, claimed: int) -> int | None:
        """Return how many more jobs the worker may claim after ``claimed`` ones."""
        return None if self._max_jobs is None else max(0, self._max_jobs - claimed)

    def is_enough(self, done: int) -> str | None:
        """Return why the worker should end after ``done`` jobs, if it should."""
        if self._max_jobs is not None and done >= self._max_jobs:
            return f"it has run {done:,} jobs"
        if self._max_memory is not None and local_clock() >= self._next_look:
            self._next_look = local_clock() + LOOK_SEC
            if (held := memory()) > self._max_memory:
                return f"it holds {held / 2**20:,.0f} MB"
        return None
