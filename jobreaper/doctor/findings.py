"""What the doctor says: how grave, what it found, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How grave a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One finding: about what, in which database (empty: in none), and what to do about it."""

    about: str
    level: Level
    text: str
    remedy: str = ""
    database: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return it for JSON."""
        return {**vars(self), "level": self.level.value}
