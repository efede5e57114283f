"""Parsers for single values of the settings. Each returns the value in its final unit or raises
``ValueError`` with a message that completes "the value is bad: it …".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, TypeVar

from jobreaper.policies import LONGEST_MS, NAMED_BACKOFFS_MS
from jobreaper.states import OnExpiry

T = TypeVar("T")

# More rows a statement than this is a typing error, and PostgreSQL counts no further than bigint.
MOST_ROWS: Final = 2**31 - 1

_UNITS_SEC: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")


def _number(value: float | str) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def parse_duration(value: object) -> float:
    """Return a duration in seconds from a number of seconds or text such as ``"90"``, ``"10m"`` or
    ``"1h 30m"``.

    Raises:
        ValueError: it is neither, is negative, or is longer than a year.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("it must be a number of seconds or text such as '10m'")
    if isinstance(value, str):
        text = value.strip().lower()
        parts = _DURATION.findall(text)
        if parts and not _DURATION.sub("", text).strip():
            value = sum(float(number) * _UNITS_SEC[unit] for number, unit in parts)
    try:
        seconds = _number(value)
    except ValueError:
        raise ValueError("it must be a number of seconds or text such as '10m'") from None
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError("it must not be negative or infinite")
    if seconds * 1000 > LONGEST_MS:
        raise ValueError("it must not be longer than a year")
    return seconds


def positive_duration(value: object) -> float:
    """Return a duration in seconds that is more than 0."""
    seconds = parse_duration(value)
    if not seconds:
        raise ValueError("it must be more than 0")
    return seconds


def milliseconds(value: object) -> int:
    """Return whole milliseconds: a bare number is milliseconds, text with a unit is a duration."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError):
            value = _number(value) / 1000
    whole = round(parse_duration(value) * 1000)
    if whole < 1:
        raise ValueError("it must be at least 1 ms")
    return whole


def count(value: object) -> int:
    """Return a whole number from 1 to 32767."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("it must be a whole number")
    try:
        number = int(value)
    except ValueError:
        raise ValueError("it must be a whole number") from None
    if not 1 <= number <= 32767:
        raise ValueError("it must be between 1 and 32767")
    return number


def batch_size(value: int) -> int:
    """Return a number of rows a statement."""
    if not 1 <= value <= MOST_ROWS:
        raise ValueError(f"batch_size must be at least 1 and at most {MOST_ROWS}, not {value}")
    return value


def factor(value: object) -> float:
    """Return a factor from 0 to 1,000,000."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("it must be a number")
    try:
        number = _number(value)
    except ValueError:
        raise ValueError("it must be a number") from None
    if not 0 <= number <= 1_000_000:
        raise ValueError("it must be between 0 and 1,000,000")
    return number


def backoff(value: object) -> tuple[int, ...]:
    """Return delays in milliseconds from a list of durations in seconds or a backoff's name."""
    if isinstance(value, str) and value in NAMED_BACKOFFS_MS:
        return NAMED_BACKOFFS_MS[value]
    if isinstance(value, str) or not isinstance(value, Iterable):
        names = ", ".join(map(repr, NAMED_BACKOFFS_MS))
        raise ValueError(f"it must be a list of durations such as ['30s', '2m'], or {names}")
    delays = tuple(round(parse_duration(delay) * 1000) for delay in value)
    if not delays:
        raise ValueError("it must have at least one delay")
    return delays


def on_expiry(value: object) -> OnExpiry:
    """Return what a stage asks of the reaper."""
    try:
        return OnExpiry(str(value))
    except ValueError:
        raise ValueError(f"it must be one of {', '.join(OnExpiry)}") from None


def name(value: object) -> str:
    """Return a name that PostgreSQL can store: a statement that holds another fails every time."""
    if not isinstance(value, str) or not value:
        raise ValueError("it must be text, and not empty")
    try:
        storable = "\x00" not in value and bool(value.encode())
    except UnicodeEncodeError:
        storable = False
    if not storable:
        raise ValueError("it must have neither NUL nor a lone surrogate in it")
    return value


def text(value: object) -> str:
    """Return a name that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("it must be text")
    return name(value)


def priority(value: object) -> int:
    """Return a message priority from 0 to 255, as brokers have them."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 255:
        raise ValueError("it must be a whole number from 0 to 255")
    return value


def token(value: object) -> str | None:
    """Return a token, ``None`` where it is blank."""
    if not isinstance(value, str):
        raise ValueError("it must be text")
    text = value.strip()
    # Clients write other characters into a header as UTF-8 or Latin-1, and servers read Latin-1.
    if not (text.isascii() and text.isprintable()):
        raise ValueError("it must be letters, digits and signs of ASCII")
    return text or None


def optional(parse: Callable[[object], T]) -> Callable[[object], T | None]:
    """Return ``parse`` made to let ``None`` through."""
    return lambda value: None if value is None else parse(value)
