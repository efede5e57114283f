"""The one sentence: nothing is stuck, or what is, and since when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobreaper.explaining import words
from jobreaper.overview.stuck import MOST_OF_A_TABLE, StuckJob
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
    waiting = [job for job in stuck if job.explanation.status == Status.QUEUED]
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
    if waiting:
        parts.append(_waiting(waiting))
    oldest = max((job.age_sec or 0 for job in stuck), default=0)
    text = _(" and ").join(parts)
    text = text[:1].upper() + text[1:]
    since = _("the oldest for %(span)s") % {"span": words.duration(oldest)}
    return Headline(f"{text}, {since}.", "bad")


def _waiting(jobs: Sequence[StuckJob]) -> str:
    # Of a table, only the first ones are read.
    by_table = Counter((job.table.alias, job.table.name) for job in jobs)
    named = {"n": f"{len(jobs):,}"}
    if max(by_table.values()) >= MOST_OF_A_TABLE:
        return _("at least %(n)s due jobs wait for too long") % named
    said = ngettext(
        "%(n)s due job waits for too long", "%(n)s due jobs wait for too long", len(jobs)
    )
    return said % named
