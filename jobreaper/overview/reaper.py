"""Whether the reaper is alive: the last pass of each database, and when the next is expected."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.translation import gettext as _

from jobreaper import sql
from jobreaper.explaining import words
from jobreaper.explaining.facts import ask, is_away, next_pass_after


class ReaperNow(NamedTuple):
    """The last pass over a database, and the database's time. Without a pass, all else is
    ``None``.
    """

    now: datetime
    started_at: datetime | None
    duration_ms: int | None
    reaper: str | None
    trigger: str | None
    requeued: int | None
    failed: int | None
    held_reason: str | None
    error: str | None

    @property
    def next_at(self) -> datetime | None:
        """When the next pass is expected."""
        return next_pass_after(self.started_at)

    @property
    def is_away(self) -> bool:
        """Whether no pass has run for three intervals, or ever."""
        return is_away(self.now, self.started_at)

    @property
    def tone(self) -> str:
        """How it is: ``good``, ``late`` (held) or ``bad``."""
        if self.is_away or self.error:
            return "bad"
        return "late" if self.held_reason else "good"

    @property
    def in_words(self) -> str:
        """The last pass and the next one, in words."""
        if self.started_at is None:
            return _("No pass of the reaper has ever run in this database.")
        ago = words.between(self.now, self.started_at)
        if self.is_away:
            said = _("The last pass was %(ago)s ago. Nothing reaps now.") % {"ago": ago}
        elif self.next_at is not None and self.next_at > self.now:
            said = _("The last pass was %(ago)s ago; the next one is expected in %(span)s.") % {
                "ago": ago,
                "span": words.between(self.next_at, self.now),
            }
        else:
            said = _("The last pass was %(ago)s ago; the next one is due.") % {"ago": ago}
        if self.held_reason:
            said += " " + _("It was held: %(reason)s.") % {"reason": self.held_reason}
        if self.error:
            error = words.shortened(self.error)
            said += " " + _("It had an error: %(error)s") % {"error": error}
        return said


def reaper_now(connection: BaseDatabaseWrapper) -> ReaperNow:
    """Return the last pass over a database."""
    [row] = ask(connection, sql.render("statements/last_pass"), {})
    return ReaperNow(*row)
