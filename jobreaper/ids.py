"""Keys of new jobs: version 7 UUIDs, which increase with time.

So jobs that are enqueued together keep their order, and their index entries are adjacent.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Final
from uuid import UUID, SafeUUID

_lock = threading.Lock()
_last = 0

# RFC 9562: 48 bits of milliseconds, the version, 12 bits, the variant, 62 bits.
_VERSION_AND_VARIANT: Final = 7 << 76 | 2 << 62
_FRACTION_BITS: Final = 12
_LARGEST_FRACTION: Final = (1 << _FRACTION_BITS) - 1
_RANDOM_BITS: Final = 62


def new_id() -> UUID:
    """Return a version 7 UUID, greater than all others that this process has created."""
    return new_ids(1)[0]


def new_ids(n: int) -> list[UUID]:
    """Return ``n`` version 7 UUIDs in increasing order, greater than all others that this process
    has created.
    """
    global _last
    # Milliseconds, and their fraction behind them.
    moment = (time.time_ns() << _FRACTION_BITS) // 1_000_000
    with _lock:
        # If the clock stands still or goes back, count on from the last moment.
        first = max(moment, _last + 1)
        _last = first + n - 1
    return [_id_of(moment) for moment in range(first, first + n)]


def _id_of(moment: int) -> UUID:
    time_bits, fraction = moment >> _FRACTION_BITS, moment & _LARGEST_FRACTION
    rest = random.getrandbits(_RANDOM_BITS)
    # As UUID(int=...) does, in less than half of its time: it looks for other arguments too.
    new = object.__new__(UUID)
    object.__setattr__(new, "int", time_bits << 80 | fraction << 64 | _VERSION_AND_VARIANT | rest)
    object.__setattr__(new, "is_safe", SafeUUID.unknown)
    return new
