"""What a worker process tells its supervisor, in memory that both share."""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from jobreaper.identity import local_clock
from jobreaper.queue.pulse import STILL_SEC

# How often a worker says that it is well.
REPORT_SEC: Final = 5.0

_ILL: Final = -1.0


class Board:
    """When a worker has to have ended its job, and when it was well, on the clock that all
    processes of the machine share. A worker that is frozen, or whose interpreter is taken, writes
    nothing more.
    """

    def __init__(self) -> None:
        self._memory = memoryview(mmap.mmap(-1, 16)).cast("d")
        self.hard_end = math.inf

    @property
    def hard_end(self) -> float:
        """When the first of its jobs has to end, by ``local_clock()``."""
        return self._memory[0]

    @hard_end.setter
    def hard_end(self, moment: float) -> None:
        self._memory[0] = moment

    def report(self, *, is_well: bool) -> None:
        """Write whether the worker is well now."""
        self._memory[1] = local_clock() if is_well else _ILL

    def why_not_live(self, started_at: float) -> str | None:
        """Return what is wrong with the worker, if anything is."""
        if (well_at := self._memory[1]) == _ILL:
            return "stands still, or sends no heartbeats"
        silent_sec = local_clock() - max(well_at, started_at)
        return f"has said nothing for {silent_sec:.0f} s" if silent_sec > STILL_SEC else None


@contextmanager
def reporting(board: Board, why_not_live: Callable[[], list[str]]) -> Iterator[None]:
    """Write on ``board`` now and then whether there is nothing that ``why_not_live()`` tells, in a
    thread, until the block ends.
    """
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(REPORT_SEC):
            board.report(is_well=not why_not_live())

    thread = threading.Thread(target=report, name="jobreaper-work-report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
