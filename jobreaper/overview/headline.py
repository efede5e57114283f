"""The one sentence: nothing is stuck, or what is, and since when."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobreaper.explaining import words
from jobreaper.overview.stuck import StuckJob
from jobreaper.overview.tables import TableNow
from jobreaper.states import Status


class Headline(NamedTuple):
    """A sentence, and its tone: ``good`` or ``bad``."""

    text: str
    tone: str


def headline(tables: Collection[TableNow], stuck: Sequence[StuckJob]) -> Headline:
    """Return whether anything is stuck, and since when."""
    unread = [each.table.name for each in tables if each.error]
    if unread:
        said = _("Nobody knows whether anything is stuck: %(tables)s cannot be read.")
        return Headline(said % {"tables": ", ".join(unread)}, "bad")
    lost = sum(each.stuck for each in tables)
    overdue = sum(1 for job in stuck if job.explanation.status == Status.QUEUED)
    if not lost and not stuck:
        return Headline(_("Nothing is stuck."), "good")
    parts = []
    if lost:
        said = ngettext(
            "%(n)s running job has lost its lease",
            "%(n)s running jobs have lost their leases",
            lost,
        )
        parts.append(said % {"n": f"{lost:,}"})
    if overdue:
        said = ngettext(
            "%(n)s due job waits for too long", "%(n)s due jobs wait for too long", overdue
        )
        parts.append(said % {"n": f"{overdue:,}"})
    oldest = max((job.age_sec or 0 for job in stuck), default=0)
    text = _(" and ").join(parts)
    since = _("the oldest for %(span)s") % {"span": words.duration(oldest)}
    return Headline(f"{text}, {since}.", "bad")
