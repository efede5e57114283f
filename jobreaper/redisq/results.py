"""What a pass over the lists of dead workers did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class PassResult:
    """What a pass did. ``whole`` is true if it came to the end of the keys. Counts are of jobs."""

    held_reason: str | None = None
    whole: bool = False
    requeued: int = 0
    dead_lettered: int = 0
    promoted: int = 0
    duration_ms: float = 0.0
    errors: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Whether nothing was taken back, on purpose."""
        return self.held_reason is not None

    def add(self, later: PassResult) -> None:
        """Count a later pass with this one."""
        self.held_reason, self.whole = later.held_reason, later.whole
        self.requeued += later.requeued
        self.dead_lettered += later.dead_lettered
        self.promoted += later.promoted
        self.duration_ms += later.duration_ms
        self.errors += later.errors

    def as_dict(self) -> dict[str, Any]:
        """Return what ``manage.py reap --format json`` prints."""
        return {
            "requeued": self.requeued,
            "dead_lettered": self.dead_lettered,
            "held": self.held,
            "held_reason": self.held_reason,
            "whole": self.whole,
            "errors": self.errors,
            "duration_ms": round(self.duration_ms, 1),
        }
