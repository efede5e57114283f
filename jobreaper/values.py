"""Parsers for single settings. Each returns the value in its final unit, or raises ``ValueError``
with a message that completes "the value is bad: it …".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from os import PathLike
from types import MappingProxyType
from typing import Any, Final, TypeVar

from jobreaper.policies import LONGEST_MS, NAMED_BACKOFFS_MS
from jobreaper.states import OnExpiry

T = TypeVar("T")

# More rows per statement are a typing error, and PostgreSQL counts only up to bigint.
MOST_ROWS: Final = 2**31 - 1

# What a column of integers holds, such as ``max_attempts``.
LARGEST_COUNT: Final = 2**31 - 1

# Of a job.
SMALLEST_PRIORITY: Final = -(2**15)
LARGEST_PRIORITY: Final = 2**15 - 1

# A row of an index has room for 2,700 bytes: a table's name and this many characters of any script.
LONGEST_NAME: Final = 255

_UNITS_SEC: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")


def several(given: Iterable[T], what: str) -> list[T]:
    """Return what a caller gave as a list. Of a text, each character would be taken for one.

    Raises:
        TypeError: it is a text.
    """
    if isinstance(given, str | bytes):
        raise TypeError(f"{what} must be a list or another iterable, not the text {given!r}")
    return list(given)


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
    """Return a whole number from 1 to what a column of integers holds."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("it must be a whole number")
    try:
        number = int(value)
    except ValueError:
        raise ValueError("it must be a whole number") from None
    if not 1 <= number <= LARGEST_COUNT:
        raise ValueError(f"it must be between 1 and {LARGEST_COUNT}")
    return number


def only_max_running(value: object) -> int:
    """Return the ``max_running`` of a dict that has this key and no other."""
    if not isinstance(value, Mapping) or set(value) != {"max_running"}:
        raise ValueError("it must be a dict with the key 'max_running' and no other")
    return count(value["max_running"])


def batch_size(value: int) -> int:
    """Return a number of rows per statement."""
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
    """Return what the reaper does when a lease of the stage runs out."""
    try:
        return OnExpiry(str(value))
    except ValueError:
        raise ValueError(f"it must be one of {', '.join(OnExpiry)}") from None


def name(value: object) -> str:
    """Return a name that PostgreSQL can store. A statement with any other name always fails."""
    if not isinstance(value, str) or not value:
        raise ValueError("it must be text, and not empty")
    try:
        storable = "\x00" not in value and bool(value.encode())
    except UnicodeEncodeError:
        storable = False
    if not storable:
        raise ValueError("it must have neither NUL nor a lone surrogate in it")
    return value


def short_name(value: object) -> str:
    """Return a name that also fits into an index, as those of stages and types have to."""
    text = name(value)
    if len(text) > LONGEST_NAME:
        raise ValueError(f"it has {len(text)} characters, and {LONGEST_NAME} are the most")
    return text


def text(value: object) -> str:
    """Return a name that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("it must be text")
    return name(value)


def path(value: object) -> str:
    """Return the path of a file, given as text or as a ``Path``."""
    if not isinstance(value, str | PathLike) or not str(value).strip():
        raise ValueError("it must be the path of a file")
    return str(value)


def routes(value: object) -> str | Mapping[str, str]:
    """Return an alias of a database, or the aliases that stand for others, by those."""
    if isinstance(value, Mapping):
        return MappingProxyType({text(alias): text(route) for alias, route in value.items()})
    return text(value)


NO_NAMES: Final[tuple[str, ...]] = ()


def names(value: object) -> tuple[str, ...]:
    """Return names of PostgreSQL's settings, given as a list or as text with commas."""
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, list | tuple):
        raise ValueError("it must be a list of names")
    return tuple(text(each).strip() for each in found)


def priority(value: object) -> int:
    """Return a message priority from 0 to 255, the range of brokers."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 255:
        raise ValueError("it must be a whole number from 0 to 255")
    return value


def job_priority(value: object) -> int:
    """Return the priority of a job, which is a smallint."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not SMALLEST_PRIORITY <= value <= LARGEST_PRIORITY
    ):
        raise ValueError(
            f"it must be a whole number from {SMALLEST_PRIORITY} to {LARGEST_PRIORITY}"
        )
    return value


def switch(value: object) -> bool:
    """Return ``True`` or ``False``, also of the words in which an environment says so."""
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError("it must be True or False")


def token(value: object) -> str | None:
    """Return a token, or ``None`` if it is blank."""
    if not isinstance(value, str):
        raise ValueError("it must be text")
    text = value.strip()
    # Clients encode other characters in a header as UTF-8 or Latin-1; servers read Latin-1.
    if not (text.isascii() and text.isprintable()):
        raise ValueError("it must be letters, digits and signs of ASCII")
    return text or None


def optional(parse: Callable[[object], T]) -> Callable[[object], T | None]:
    """Return a parser that accepts ``None`` and otherwise calls ``parse``."""
    return lambda value: None if value is None else parse(value)


# The keys of a stage in ``STAGES``: the attribute of its policy, and what reads it.
STAGE_PARSERS: Final[Mapping[str, tuple[str, Callable[[object], Any]]]] = MappingProxyType(
    {
        "lease": ("lease_sec", positive_duration),
        "sla_factor": ("sla_factor", factor),
        "max_runtime": ("max_runtime_sec", optional(positive_duration)),
        "stall_after": ("stall_after_sec", optional(positive_duration)),
        "backoff": ("backoff_ms", backoff),
        "on_expiry": ("on_expiry", on_expiry),
        "max_reaps": ("max_reaps", optional(count)),
        "ttl": ("ttl_sec", optional(positive_duration)),
        "max_running": ("max_running", optional(count)),
        "queue": ("queue", optional(text)),
        "priority": ("priority", optional(priority)),
    }
)
