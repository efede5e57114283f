"""Times, spans and badges, as people read them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_aware, localtime

# Longer values are cut where they stand among others; the raw data beside them is whole.
LONGEST_VALUE: Final = 300


def timestamp(at: datetime | str) -> str:
    """Return a time to the second, in the time zone of the reader; one that Python cannot hold is
    a text, and stays as it is.
    """
    if isinstance(at, str):
        return at
    return f"{localtime(at) if is_aware(at) else at:%Y-%m-%d %H:%M:%S}"


def duration(span: timedelta | float) -> str:
    """Return a span, or a number of seconds, in its two largest units: ``"2 min 5 s"``."""
    seconds = abs(span.total_seconds() if isinstance(span, timedelta) else span)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, hours, days = (int(seconds // unit) for unit in (60, 3600, 86400))
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60:.0f} s" if minutes else f"{seconds:.0f} s"


def between(now: datetime, at: datetime | str) -> str:
    """Return the span between two times, or the second where that is a text: it is beyond all
    spans.
    """
    return at if isinstance(at, str) else duration(now - at)


def moment(value: object) -> str:
    """Return a time out of an event like any other time, whatever else stands there as it is."""
    try:
        at = parse_datetime(str(value))
    except ValueError:
        at = None
    return shortened(value) if at is None else timestamp(at)


def milliseconds(value: object) -> str:
    """Return milliseconds out of an event as a duration. Foreign writers may put anything there."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return duration(value / 1000) if is_number else shortened(value)  # type: ignore[operator]


def shortened(value: object) -> str:
    """Return ``str(value)``, cut to a length that leaves a list readable."""
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def badge(word: object, tone: object, note: object = "") -> SafeString:
    """Return ``word`` on a coloured ground (see ``admin.css`` for the tones), a note beside it."""
    shown = format_html('<span class="jr-badge jr-{}">{}</span>', tone, word)
    return format_html('{} <span class="jr-note">{}</span>', shown, note) if note else shown
