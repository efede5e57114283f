"""The column that says how far a job is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy

from jobreaper.explaining.reported import ago, in_words
from jobreaper.states import Status
from jobreaper.tables import table_of

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class ProgressColumn(ModelAdmin):
    """Shows what a job has reported, in a table that tracks progress."""

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns, with the progress behind the lease where a table has it."""
        columns = [*super().get_list_display(request)]
        if table_of(self.model).tracks_progress and "lease" in columns:
            columns.insert(columns.index("lease") + 1, "progress_now")
        return columns

    @admin.display(description=gettext_lazy("progress"))
    def progress_now(self, job: Any) -> str:
        """What the job has reported last, and how long ago if it is running."""
        if not table_of(self.model).tracks_progress or job.progress is None:
            return self.get_empty_value_display()
        at = job.progress_at if job.status == Status.PROCESSING else None
        return " · ".join(filter(None, [in_words(job.progress), ago(job.seen_at, at)]))
