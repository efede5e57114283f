"""Which tables have a long line of jobs that the claims of this process pass over."""

from __future__ import annotations

from typing import Final

from jobreaper.identity import local_clock
from jobreaper.tables import JobTable

# For this long, claims find jobs by their kinds. Then one looks along the line again.
BY_KIND_SEC: Final = 60.0

# Until when, by the local clock.
_long: Final[dict[tuple[str, str], float]] = {}


def is_long(table: JobTable) -> bool:
    """Return whether a claim lately met too many jobs that were not for it."""
    return bool(_long) and local_clock() < _long.get((table.alias, table.name), 0.0)


def note_long(table: JobTable) -> None:
    """Remember for a while that a claim met too many jobs that were not for it."""
    _long[table.alias, table.name] = local_clock() + BY_KIND_SEC
