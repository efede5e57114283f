"""The admin of the reaper's passes: read-only."""

from __future__ import annotations

from typing import Final

from django.contrib import admin
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobreaper.admin.filters import OutcomeFilter, PassTableFilter, TriggerFilter
from jobreaper.admin.large import ReadOnlyAdmin
from jobreaper.admin.words import badge, milliseconds, shortened, timestamp
from jobreaper.models import ReaperPass

_VERBS: Final = ("requeued", "failed")


@admin.register(ReaperPass)
class ReaperPassAdmin(ReadOnlyAdmin):
    """All recorded passes, newest first."""

    list_display = ("when", "took", "trigger", "reaper", "by_table", "outcome")
    list_filter = (OutcomeFilter, TriggerFilter, PassTableFilter)
    fields = readonly_fields = (
        "when",
        "took",
        "trigger",
        "reaper",
        "by_table",
        "outcome",
        "held_reason",
        "error",
    )

    @admin.display(description=_("when"))
    def when(self, run: ReaperPass) -> str:
        """The start to the second."""
        return timestamp(run.started_at)

    @admin.display(description=_("took"))
    def took(self, run: ReaperPass) -> str:
        """How long it took."""
        return milliseconds(run.duration_ms)

    @admin.display(description=_("jobs by table"))
    def by_table(self, run: ReaperPass) -> str:
        """What the pass did to each table, without tables with nothing to do. Anything other than
        counts, from a foreign writer, is shown as text.
        """
        if not isinstance(run.counts, dict):
            return shortened(run.counts)
        lines = [
            (
                table,
                ", ".join(f"{shortened(done[verb])} {verb}" for verb in _VERBS if done.get(verb))
                if isinstance(done, dict)
                else shortened(done),
            )
            for table, done in run.counts.items()
        ]
        shown = [line for line in lines if line[1]]
        return format_html_join("", "<div>{}: {}</div>", shown) or "-"

    @admin.display(description=_("outcome"))
    def outcome(self, run: ReaperPass) -> SafeString:
        """The result, and the reason if there is none."""
        if run.error is not None:
            return badge("error", "bad", shortened(run.error))
        if run.held:
            return badge("held", "late", shortened(run.held_reason or ""))
        return (
            badge("reaped", "good")
            if run.requeued or run.failed
            else badge("nothing to do", "plain")
        )
