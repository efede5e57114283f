"""A job of the Redis queue, and its form in the lists: JSON, for workers in any language.

Foreign programs push entries too, so nothing about an entry is taken for granted.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NoReturn

from jobreaper.exceptions import MalformedJob

# Of an entry, in bytes. A path has at most 4,096.
LARGEST_ENTRY: Final = 1024 * 1024

# So that every client can count it: JSON's numbers are doubles in most languages.
LARGEST_NUMBER: Final = 2**53 - 1

_RFC3339: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE
)
_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One job. ``filesize`` is in bytes, ``retries`` counts the failed attempts so far.
    Texts that are not known are empty.

    ``extra`` has the keys that this package does not know; they stay with the job.
    """

    id: str
    filepath: str
    filesize: int = 0
    priority: str = ""
    retries: int = 0
    creation_time: str = ""
    trace_id: str = ""
    span_id: str = ""
    origin_queue: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the job as the entry of a list: one line of JSON in UTF-8."""
        values = {name: getattr(self, name) for name in _KEYS} | dict(self.extra)
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()


_TEXTS: Final = ("priority", "creation_time", "trace_id", "span_id", "origin_queue")
_NUMBERS: Final = ("filesize", "retries")
_KEYS: Final = tuple(each.name for each in fields(Job) if each.name != "extra")


def parse(entry: bytes) -> Job:
    """Return the job in ``entry``. Only ``id`` and ``filepath`` must be there.

    Raises:
        MalformedJob: it is not a job. The message never quotes the entry.
    """
    values = _object(entry)
    found: dict[str, Any] = {}
    for name in ("id", "filepath"):
        found[name] = _text(name, values.pop(name, None))
        if not found[name]:
            raise MalformedJob(f"{name} is missing")
    for name in _TEXTS:
        found[name] = _text(name, values.pop(name, ""))
    for name in _NUMBERS:
        found[name] = _number(name, values.pop(name, 0))
    if found["creation_time"] and not _RFC3339.fullmatch(found["creation_time"]):
        raise MalformedJob("creation_time is not a time of RFC 3339")
    return Job(**found, extra=values)


def now() -> str:
    """Return the present as a time of RFC 3339, in UTC, with nanoseconds."""
    seconds, nanoseconds = divmod(time.time_ns(), _NANOSECONDS)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanoseconds:09d}Z"


def _object(entry: bytes) -> dict[str, Any]:
    if len(entry) > LARGEST_ENTRY:
        raise MalformedJob(f"it has more than {LARGEST_ENTRY:,} bytes")
    try:
        values = json.loads(entry.decode(), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise MalformedJob("it is not UTF-8 text") from None
    except RecursionError:
        raise MalformedJob("it is nested too deeply") from None
    except ValueError:
        raise MalformedJob("it is not JSON") from None
    if not isinstance(values, dict):
        raise MalformedJob("it is not a JSON object")
    if b"\\u" in entry:
        _refuse_surrogates(values)
    return values


def _no_number(_: str) -> NoReturn:
    # NaN and Infinity are Python's, not JSON's.
    raise ValueError


def _refuse_surrogates(values: dict[str, Any]) -> None:
    """Half a surrogate pair can be escaped in JSON, but is no character in any encoding."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise MalformedJob("it has text that is not Unicode") from None


def _text(name: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedJob(f"{name} is not text")
    return value


def _number(name: str, value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedJob(f"{name} is not a whole number")
    if not 0 <= value <= LARGEST_NUMBER:
        raise MalformedJob(f"{name} is not between 0 and {LARGEST_NUMBER}")
    return value
