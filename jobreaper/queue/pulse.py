"""Whether the main thread of a worker stands still."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from jobreaper.identity import local_clock

# The main thread looks around within this time when it is rung for, unless it waits for the
# database, which takes less than that other time.
ANSWER_SEC: Final = 2.0
STILL_SEC: Final = 60.0


class Pulse:
    """Beats whenever the main thread looks at what there is to do. ``ring`` has it do so."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._at = local_clock()
        self.number = 0

    def beat(self) -> None:
        """Record that the main thread looks around."""
        self.number += 1
        self._at = local_clock()

    def still_sec(self) -> float | None:
        """Return for how many seconds the main thread has stood still, if it does. May be called in
        any other thread, and takes a moment.
        """
        before = self.number
        self._ring()
        ends_at = local_clock() + ANSWER_SEC
        while self.number == before and local_clock() < ends_at:
            time.sleep(ANSWER_SEC / 100)
        still_sec = local_clock() - self._at
        return still_sec if self.number == before and still_sec > STILL_SEC else None
