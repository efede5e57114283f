"""Times, spans and badges, as people read them."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString

from jobreaper.explaining.words import (
    LONGEST_VALUE,
    between,
    duration,
    milliseconds,
    moment,
    shortened,
    timestamp,
)

__all__ = [
    "LONGEST_VALUE",
    "badge",
    "between",
    "duration",
    "milliseconds",
    "moment",
    "shortened",
    "timestamp",
]


def badge(word: object, tone: object, note: object = "") -> SafeString:
    """Return ``word`` on a colored background (see ``admin.css`` for the tones), with a note beside
    it.
    """
    shown = format_html('<span class="jr-badge jr-{}">{}</span>', tone, word)
    return format_html('{} <span class="jr-note">{}</span>', shown, note) if note else shown
