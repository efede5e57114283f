"""Times, spans and statements of other sessions, as people read them."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_aware, localtime

# Longer values are cut in lists; the raw data beside them is complete.
LONGEST_VALUE: Final = 300
LONGEST_STATEMENT: Final = 160


def timestamp(at: datetime | str) -> str:
    """Return a time to the second, in the reader's time zone. A time that Python cannot represent
    is a text and is returned unchanged.
    """
    if isinstance(at, str):
        return at
    try:
        return f"{localtime(at) if is_aware(at) else at:%Y-%m-%d %H:%M:%S}"
    # In the reader's time zone, it may already be the year 10000.
    except OverflowError:
        return str(at)


def duration(span: timedelta | float) -> str:
    """Return a span, or a number of seconds, in its two largest units, such as ``"2 min 5 s"``."""
    seconds = abs(span.total_seconds() if isinstance(span, timedelta) else span)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    seconds = round(seconds)
    minutes, hours, days = (seconds // unit for unit in (60, 3600, 86400))
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


def between(now: datetime, at: datetime | str) -> str:
    """Return the span between two times, or the second one if it is a text, because then there is
    no span.
    """
    return at if isinstance(at, str) else duration(now - at)


def moment(value: object) -> str:
    """Return a time from an event like any other time, and anything else unchanged."""
    try:
        at = parse_datetime(str(value))
    except ValueError:
        at = None
    return shortened(value) if at is None else timestamp(at)


def milliseconds(value: object) -> str:
    """Return milliseconds from an event as a duration. The value may be anything, from a foreign
    writer.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            return duration(value / 1000)
    return shortened(value)


def shortened(value: object) -> str:
    """Return ``str(value)``, cut to a length that keeps a list readable."""
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def statement(text: str | None) -> str:
    """Return a statement of another session in one line, without the values in it."""
    plain = re.sub(r"'(?:[^']|'')*'?", "'…'", text or "")
    line = " ".join(re.sub(r"\b\d+\b", "…", plain).split())
    return line if len(line) <= LONGEST_STATEMENT else f"{line[:LONGEST_STATEMENT]}…"
