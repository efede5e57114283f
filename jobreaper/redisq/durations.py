"""Durations as text, such as ``200ms``, ``5s`` or ``1m30s``. Inside, they are seconds."""

from __future__ import annotations

import re
from typing import Final

# The longest first, as they are written.
_UNITS_MS: Final = {"h": 3_600_000.0, "m": 60_000.0, "s": 1000.0, "ms": 1.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+")

# Longer than this is a typing error, and Redis counts milliseconds.
LONGEST_SEC: Final = 365 * 86_400.0

_EXPECTED: Final = "must be a duration with a unit, such as 200ms, 5s or 1m30s"


def parse_duration(value: object) -> float:
    """Return the seconds that ``value`` stands for. A bare number other than 0 has no unit, and
    could mean seconds or milliseconds, so it is refused.

    Raises:
        ValueError: it is not a duration, or is longer than a year.
    """
    text = value.strip() if isinstance(value, str) else value
    if text == "0" or (text == 0 and not isinstance(text, bool)):
        return 0.0
    if not isinstance(text, str) or not (text.isascii() and _WHOLE.fullmatch(text)):
        raise ValueError(_EXPECTED)
    total_ms = sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
    if total_ms > LONGEST_SEC * 1000:
        raise ValueError("must not be longer than a year")
    return total_ms / 1000


def format_duration(seconds: float) -> str:
    """Return ``seconds`` as text that ``parse_duration`` reads back, to a thousandth of a
    millisecond.
    """
    remaining_ms = round(seconds * 1000, 3)
    parts = []
    for unit, size in _UNITS_MS.items():
        whole, rest = divmod(remaining_ms, size)
        if unit == "ms":
            whole, rest = round(remaining_ms, 3), 0.0
        if whole:
            parts.append(f"{whole:.3f}".rstrip("0").rstrip(".") + unit)
        remaining_ms = round(rest, 3)
    return "".join(parts) or "0s"
