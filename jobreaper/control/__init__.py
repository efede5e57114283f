"""For operators: changing jobs by hand, pausing stages, deleting old records."""

from jobreaper.control.by_hand import (
    cancel,
    fail,
    requeue,
    run_now,
)
from jobreaper.control.pauses import (
    is_paused,
    pause,
    paused,
    resume,
)
from jobreaper.control.retention import (
    PruneResult,
    prune,
)

__all__ = [
    "PruneResult",
    "cancel",
    "fail",
    "is_paused",
    "pause",
    "paused",
    "prune",
    "requeue",
    "resume",
    "run_now",
]
