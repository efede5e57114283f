"""The admin of workers: who is here, silent or gone, and which jobs each of them holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobreaper import conf
from jobreaper.admin.filters import KindFilter, WorkerFilter, WorkerStateFilter, held
from jobreaper.admin.links import AdminForTheUser
from jobreaper.admin.words import badge, between, timestamp
from jobreaper.models import Worker
from jobreaper.presence import standing
from jobreaper.states import WorkerState
from jobreaper.tables import job_tables

TIMES: Final = ("started", "seen")

_TONES: Final = {WorkerState.HERE: "good", WorkerState.SILENT: "late", WorkerState.GONE: "bad"}


@dataclass(frozen=True)
class HeldJobs:
    """A column with the number of jobs that a worker holds in each table, for a request. Each
    leads to the list of these jobs. Tables that are not in this admin, whose list has no filter by
    worker, or that this user may not see are left out.
    """

    site: admin.AdminSite
    request: HttpRequest
    alias: str

    # These are the attributes that Django reads from a column.
    __name__ = "jobs"
    short_description = gettext_lazy("holds")

    def __call__(self, worker: Worker) -> SafeString | str:
        filtered = urlencode({WorkerFilter.parameter_name: worker.pk})
        found = [
            (f"{address}?{filtered}", table, numbers[worker.pk])
            for address, table, numbers in self._by_table
            if worker.pk in numbers
        ]
        return format_html_join(", ", '<a href="{}">{}: {}</a>', found) or "-"

    @cached_property
    def _by_table(self) -> list[tuple[str, str, dict[str, int]]]:
        return list(self._count())

    def _count(self) -> Iterator[tuple[str, str, dict[str, int]]]:
        for table in job_tables():
            if table.alias != self.alias or not self.site.is_registered(table.model):
                continue
            jobs: Any = self.site.get_model_admin(table.model)
            if WorkerFilter in jobs.get_list_filter(
                self.request
            ) and jobs.has_view_or_change_permission(self.request):
                by_worker = held(jobs.get_queryset(self.request)).values_list("locked_by")
                label = table.model._meta.label_lower.replace(".", "_")
                address = reverse(f"admin:{label}_changelist", current_app=self.site.name)
                yield address, table.name, dict(by_worker.annotate(Count("pk")))


@admin.register(Worker)
class WorkerAdmin(AdminForTheUser):
    """The workers that are here, and those that were of late."""

    # The id contains the host and the process id.
    list_display = ("worker", "stands", "jobs", "leases", "kind", "runs", *TIMES, "version")
    list_filter = (WorkerStateFilter, KindFilter)
    ordering = ("pk",)
    search_fields = ("worker__startswith",)
    search_help_text = gettext_lazy("How a worker's id begins: with its host.")
    fields = readonly_fields = (
        *("worker", "stands", "jobs", "leases", "kind", "runs", "host", "pid", "version"),
        *(*TIMES, "stopping_at", "silent_since", "gone_at", "taken"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the workers and how they stand."""
        return standing.with_state(super().get_queryset(request))

    def place(self, request: HttpRequest) -> str | None:
        """Return a page's words for its database, and say if nobody is watched."""
        is_off = not conf.settings().presence_grace_sec
        off = _("presence is switched off: PRESENCE_GRACE_SEC is 0") if is_off else None
        return ", ".join(filter(None, [super().place(request), off])) or None

    def columns_for(self, request: HttpRequest) -> Mapping[str, Any]:
        """Return the links that this user may follow."""
        return {"jobs": HeldJobs(self.admin_site, request, self.database(request))}

    @admin.display(description=gettext_lazy("holds"))
    def jobs(self, worker: Any) -> str:
        """The jobs that it holds; a request has a column with links instead."""
        return "-"

    @admin.display(description=gettext_lazy("state"))
    def stands(self, worker: Any) -> SafeString:
        """Whether it is here, silent or gone, since when, and what decides about its jobs."""
        state = WorkerState(worker.state)
        notes = []
        if state is WorkerState.SILENT:
            since = worker.silent_since or worker.seen_at
            notes.append(_("for %(span)s") % {"span": between(worker.looked_at, since)})
        if state is WorkerState.GONE and worker.gone_at is not None:
            notes.append(_("%(span)s ago") % {"span": between(worker.looked_at, worker.gone_at)})
        if worker.taken:
            said = ngettext("%(n)d job taken back", "%(n)d jobs taken back", worker.taken)
            notes.append(said % {"n": worker.taken})
        if not worker.is_direct:
            notes.append(_("no presence, through a pooler: its leases decide"))
        return badge(state, _TONES[state], ", ".join(notes))

    @admin.display(description=gettext_lazy("started"))
    def started(self, worker: Any) -> str:
        """When it was first seen, to the second."""
        return timestamp(worker.started_at)

    @admin.display(description=gettext_lazy("last seen"))
    def seen(self, worker: Any) -> str:
        """How long ago it last said that it is here."""
        return _("%(span)s ago") % {"span": between(worker.looked_at, worker.seen_at)}
