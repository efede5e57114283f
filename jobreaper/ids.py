"""Keys of new jobs: version 7 UUIDs, which increase with time.

So jobs that are enqueued together keep their order, and their index entries are adjacent.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from typing import Final

_lock = threading.Lock()
_last = 0

# RFC 9562: 48 bits of milliseconds, the version, 12 bits, the variant, 62 bits.
_VERSION: Final = 7 << 76
_VARIANT: Final = 2 << 62
_FRACTION_BITS: Final = 12
_LARGEST_FRACTION: Final = (1 << _FRACTION_BITS) - 1
_RANDOM_BITS: Final = 62


def new_id() -> uuid.UUID:
    """Return a version 7 UUID, greater than all others that this process has created."""
    global _last
    # Milliseconds, and their fraction behind them.
    moment = (time.time_ns() << _FRACTION_BITS) // 1_000_000
    with _lock:
        # If the clock stands still or goes back, count on from the last moment.
        _last = moment = max(moment, _last + 1)
    rest = random.getrandbits(_RANDOM_BITS)
    time_bits, fraction = moment >> _FRACTION_BITS, moment & _LARGEST_FRACTION
    return uuid.UUID(int=time_bits << 80 | _VERSION | fraction << 64 | _VARIANT | rest)
