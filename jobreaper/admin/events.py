"""The admin of JobEvents: read-only, found by job id, type and table."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobreaper.admin.filters import EventTypeFilter, TableFilter
from jobreaper.admin.large import ReadOnlyAdmin
from jobreaper.admin.timeline import Entry, job_link
from jobreaper.models import JobEvent


@admin.register(JobEvent)
class JobEventAdmin(ReadOnlyAdmin):
    """Every event of every job, newest first."""

    list_display = ("when", "kind", "table", "job", "who", "why")
    list_filter = (EventTypeFilter, TableFilter)
    search_fields = ("job_id",)
    search_help_text = _("A job's exact id.")
    fields = readonly_fields = ("when", "what", "kind", "table", "job", "who", "why", "everything")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return the events of the job with exactly this id."""
        job_id = search_term.strip()
        return (queryset.filter(job_id=job_id) if job_id else queryset), False

    @admin.display(description=_("when"))
    def when(self, event: JobEvent) -> str:
        """The time, to the second."""
        return Entry(event).when

    @admin.display(description=_("type"))
    def kind(self, event: JobEvent) -> SafeString:
        """The type, coloured."""
        return Entry(event).type_badge

    @admin.display(description=_("what happened"))
    def what(self, event: JobEvent) -> Any:
        """The type in a sentence."""
        return Entry(event).what

    @admin.display(description=_("job"))
    def job(self, event: JobEvent) -> SafeString | str:
        """The job, linked where its table is known."""
        return job_link(self.admin_site, event)

    @admin.display(description=_("by"))
    def who(self, event: JobEvent) -> str:
        """The one who acted."""
        return Entry(event).who

    @admin.display(description=_("details"))
    def why(self, event: JobEvent) -> SafeString:
        """The facts in one line."""
        return format_html_join(", ", '<span class="jr-note">{}</span> {}', Entry(event).facts)

    @admin.display(description=_("data"))
    def everything(self, event: JobEvent) -> SafeString:
        """The event as it was written."""
        return format_html('<pre class="jr-raw">{}</pre>', Entry(event).raw)
