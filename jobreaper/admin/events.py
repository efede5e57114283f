"""The admin of JobEvents: read-only, found by job id, type and table."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobreaper.admin.filters import EventTypeFilter, TableFilter
from jobreaper.admin.links import LinkedAdmin
from jobreaper.admin.timeline import Entry
from jobreaper.models import JobEvent


@admin.register(JobEvent)
class JobEventAdmin(LinkedAdmin):
    """Every event of every job, newest first."""

    list_display = ("when", "kind", "table", "job", "who", "why")
    list_filter = (EventTypeFilter, TableFilter)
    search_fields = ("job_id",)
    fields = readonly_fields = ("when", "what", "kind", "table", "job", "who", "why", "everything")

    @admin.display(description=_("when"))
    def when(self, event: JobEvent) -> str:
        """The time, to the second."""
        return Entry(event).when

    @admin.display(description=_("type"))
    def kind(self, event: JobEvent) -> SafeString:
        """The type, in color."""
        return Entry(event).type_badge

    @admin.display(description=_("what happened"))
    def what(self, event: JobEvent) -> Any:
        """The type in a sentence."""
        return Entry(event).what

    @admin.display(description=_("by"))
    def who(self, event: JobEvent) -> str:
        """Who acted."""
        return Entry(event).who

    @admin.display(description=_("details"))
    def why(self, event: JobEvent) -> SafeString:
        """The facts in one line."""
        return format_html_join(", ", '<span class="jr-note">{}</span> {}', Entry(event).facts)

    @admin.display(description=_("data"))
    def everything(self, event: JobEvent) -> SafeString:
        """The event as it was written."""
        return format_html('<pre class="jr-raw">{}</pre>', Entry(event).raw)
