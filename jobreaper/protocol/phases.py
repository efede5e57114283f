"""The phases of a lease, as far as its process knows, and the ways from one to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class Phase(Enum):
    """The phase of a lease, as far as this process knows."""

    # As far as known, nobody has taken it away.
    HELD = "held"
    # A verb's statement is on its way.
    ENDING = "ending"
    # Ended in a transaction that may still be rolled back.
    CLOSING = "closing"
    # Finished, failed or released.
    ENDED = "ended"
    # Taken away, or it has run out.
    LOST = "lost"


# A verb may be tried on a lost lease: the database decides, and if the loss was concluded from the
# local clock, the lease may still exist.
TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.HELD: frozenset({Phase.ENDING, Phase.LOST}),
    Phase.ENDING: frozenset({Phase.HELD, Phase.CLOSING, Phase.ENDED, Phase.LOST}),
    Phase.CLOSING: frozenset({Phase.HELD, Phase.ENDED, Phase.LOST}),
    Phase.LOST: frozenset({Phase.ENDING}),
    Phase.ENDED: frozenset(),
}
