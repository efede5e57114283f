"""What a job has reported, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from jobreaper.explaining import words
from jobreaper.progress import LARGEST_NUMBER


def in_words(progress: object) -> str:
    """Return a report in one line, such as ``"40 of 100 (40 %): page 40"``. A foreign writer may
    have written anything.
    """
    if progress is None:
        return ""
    if not isinstance(progress, dict) or _number(progress.get("done")) is None:
        return words.shortened(progress)
    return words.shortened(": ".join(_phrases(progress)))


def _phrases(progress: Mapping[str, Any]) -> Iterator[str]:
    done, total = _number(progress["done"]), _number(progress.get("total"))
    if done is not None and total is not None:
        # Not rounded up: only a job that is done says 100 %.
        percent = str(int(done / total * 100)) if total > 0 else "100"
        said = {"done": _shown(done), "total": _shown(total), "percent": percent}
        yield _("%(done)s of %(total)s (%(percent)s %%)") % said
    elif done is not None:
        yield _shown(done)
    if progress.get("note") not in (None, ""):
        yield str(progress["note"])


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= LARGEST_NUMBER else None


def _shown(number: float) -> str:
    value = number if isinstance(number, int) else round(number, 2)
    return number_format(value, use_l10n=True, force_grouping=True)


def ago(now: datetime, at: datetime | None) -> str:
    """Return how long ago something new was reported."""
    return "" if at is None else _("%(span)s ago") % {"span": words.between(now, at)}
