"""What the Reaper page shows, for one person: nothing that this user may not see elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from django.contrib import admin
from django.contrib.auth import get_permission_codename
from django.db import Error, models
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobreaper.admin.keys import page_url
from jobreaper.admin.reaper_charts import charts_by_span
from jobreaper.admin.words import badge, duration, timestamp
from jobreaper.admin.workers import HeldJobs
from jobreaper.control.pauses import paused
from jobreaper.db import connection_for, in_words
from jobreaper.explaining.facts import ask
from jobreaper.models import Job, Pause, RefusedRow, Schedule, Worker
from jobreaper.overview import StuckJob, headline, reaper_now, stuck_jobs, table_now
from jobreaper.overview.tables import TableNow
from jobreaper.states import PAUSED_QUEUE_PREFIX, LeaseState, Status, WorkerState
from jobreaper.tables import JobTable, by_alias, job_tables, statements

MOST_WORKERS: Final = 100
MOST_REFUSED: Final = 20
# The stages of the jobs next in line.
MOST_IN_LINE: Final = 5_000

# What running jobs, by the state of their leases, and ended ones are called in the table.
_LEASES: Final = {
    LeaseState.LIVE: gettext_lazy("running"),
    LeaseState.LATE: gettext_lazy("late"),
    LeaseState.EXPIRED: gettext_lazy("expired"),
    LeaseState.NONE: gettext_lazy("without lease"),
}
_ENDED: Final = {
    Status.SUCCESS: gettext_lazy("success"),
    Status.FAILED: gettext_lazy("failed"),
    Status.CANCELLED: gettext_lazy("cancelled"),
}

_ORDER: Final = {WorkerState.SILENT: 0, WorkerState.HERE: 1, WorkerState.GONE: 2}


class QueueLine(NamedTuple):
    """A stage or type of a table that may be paused: how many of the next jobs it has, its pause,
    and what a button sends.
    """

    table: str
    name: str
    waiting: int
    pause: Pause | None
    value: str


class StuckLine(NamedTuple):
    """A job that stands still, as the page shows it."""

    job: StuckJob
    url: str | None
    age: str


@dataclass(frozen=True)
class ReaperParts:
    """The parts of the page, read when the template asks for them."""

    site: admin.AdminSite
    request: HttpRequest

    def may(self, model: type[models.Model], action: str) -> bool:
        """Return whether the user has Django's permission for a model."""
        codename = get_permission_codename(action, model._meta)
        return bool(self.request.user.has_perm(f"{model._meta.app_label}.{codename}"))

    def sees(self, model: type[models.Model]) -> bool:
        """Return whether the user may see the rows of a model in this admin."""
        if not self.site.is_registered(model):
            return self.may(model, "view") or self.may(model, "change")
        return self.site.get_model_admin(model).has_view_or_change_permission(self.request)

    def list_url(self, model: type[models.Model], **query: Any) -> str | None:
        """Return the URL of a model's list, if it has one that the user may see."""
        if not (self.site.is_registered(model) and self.sees(model)):
            return None
        label = model._meta.label_lower.replace(".", "_")
        address = reverse(f"admin:{label}_changelist", current_app=self.site.name)
        return f"{address}?{urlencode(query)}" if query else address

    @cached_property
    def job_tables(self) -> list[JobTable]:
        """The job tables whose jobs the user may see."""
        return [table for table in job_tables() if self.sees(table.model)]

    @cached_property
    def tables(self) -> list[TableNow]:
        """How each of them stands."""
        return [table_now(table.connection(), table) for table in self.job_tables]

    @cached_property
    def table_lines(self) -> list[dict[str, Any]]:
        """The same as lines, with links to the lists of jobs."""
        return [self._table_line(each) for each in self.tables]

    def _table_line(self, now: TableNow) -> dict[str, Any]:
        model = now.table.model
        cells: list[tuple[Any, str | None, Any]] = []
        if now.standing is not None:
            link = self.list_url(model, status="queued")
            cells.append((_("queued"), link, f"{now.standing.queued:,}"))
            for state in LeaseState:
                number = now.standing.leases.get(state, 0)
                shown = badge(f"{number:,}", state) if number else "0"
                cells.append((_LEASES[state], self.list_url(model, lease=state.value), shown))
        for status, count in now.ended.items():
            link = self.list_url(model, status=status.value)
            cells.append((_ENDED[status], link, str(count)))
        due = now.standing.oldest_due_sec if now.standing else None
        overdue = max((j.age_sec or 0 for j in self._lost(now.table)), default=0)
        return {
            "name": now.table.name,
            "url": self.list_url(model),
            "error": now.error,
            "cells": cells,
            "due": duration(due) if due else "-",
            "overdue": duration(overdue) if overdue else "-",
        }

    def _lost(self, table: JobTable) -> list[StuckJob]:
        return [
            job
            for job in self._stuck
            if job.table is table and job.explanation.status == Status.PROCESSING
        ]

    @cached_property
    def _stuck(self) -> list[StuckJob]:
        return stuck_jobs(self.job_tables, self._visible)

    def _visible(self, table: JobTable, keys: list[Any]) -> Collection[Any]:
        """Return the keys of the jobs that the user's own list of them has."""
        if not keys or not self.site.is_registered(table.model):
            return keys
        rows = self.site.get_model_admin(table.model).get_queryset(self.request)
        found = set(rows.filter(pk__in=keys).values_list("pk", flat=True))
        return [key for key in keys if key in found]

    @property
    def stuck(self) -> Iterator[StuckLine]:
        """The jobs that stand still, with links to their pages."""
        for job in self._stuck:
            model = job.table.model
            shown = self.site.is_registered(model)
            url = page_url(model, job.pk, self.site.name) if shown else None
            age = "-" if job.age_sec is None else duration(job.age_sec)
            yield StuckLine(job, url, age)

    @cached_property
    def headline(self) -> Any:
        """Whether anything is stuck."""
        return headline(self.tables, self._stuck)

    @cached_property
    def reapers(self) -> list[tuple[str, Any]]:
        """The last pass over each database, under its name if there are several."""
        found = by_alias()
        return [
            (alias if len(found) > 1 else "", reaper_now(connection_for(alias)))
            for alias in sorted(found)
        ]

    @cached_property
    def workers(self) -> list[dict[str, Any]]:
        """Who is here, silent or gone, and what each holds."""
        if not self.sees(Worker):
            return []
        lines = []
        worker_admin: Any = self.site.get_model_admin(Worker)
        for alias in sorted(by_alias()):
            holds = HeldJobs(self.site, self.request, alias)
            rows = worker_admin.get_queryset(self.request).using(alias)
            lines += [
                {
                    "order": (_ORDER[WorkerState(row.state)], row.pk),
                    "worker": row,
                    "state": worker_admin.stands(row),
                    "seen": worker_admin.seen(row),
                    "holds": holds(row),
                }
                for row in rows[:MOST_WORKERS]
            ]
        return sorted(lines, key=lambda line: line["order"])

    @cached_property
    def refused(self) -> list[tuple[str, RefusedRow]]:
        """The rows that cannot be written, those tried next first."""
        if not self.sees(RefusedRow):
            return []
        found: list[tuple[str, RefusedRow]] = []
        for alias in sorted(by_alias()):
            rows = RefusedRow.objects.using(alias).order_by("next_try_at")[:MOST_REFUSED]
            found += [(timestamp(row.next_try_at), row) for row in rows]
        return found

    @cached_property
    def queues(self) -> list[QueueLine]:
        """The stages and types that wait or are paused."""
        if not self.sees(Pause):
            return []
        return [line for table in self.job_tables for line in self._queues_of(table)]

    def _queues_of(self, table: JobTable) -> Iterator[QueueLine]:
        if not table.can_be_leased:
            return
        waiting: dict[str, int] = defaultdict(int)
        try:
            statement = statements.stages_in_line(table)
            waiting |= dict(ask(table.connection(), statement, {"most": MOST_IN_LINE}))
            pauses = {pause.name: pause for pause in paused(table.model)}
        except Error:
            return  # the table's own line says so
        for queue, number in self._in_queues(table).items():
            waiting[f"{PAUSED_QUEUE_PREFIX}{queue}"] = number
        for name in sorted({*pauses, *filter(None, waiting)}):
            value = f"{table.name}:{name}"
            yield QueueLine(table.name, name, waiting[name], pauses.get(name), value)

    def _in_queues(self, table: JobTable) -> dict[str, int]:
        """Return how many jobs each queue of a table has, if it has several."""
        found = [
            dict(now.standing.queues) for now in self.tables if now.table is table and now.standing
        ]
        return found[0] if found and len(found[0]) > 1 else {}

    @cached_property
    def schedules(self) -> list[tuple[Schedule, SafeString, str]]:
        """The schedules, with their state and next time."""
        if not self.sees(Schedule):
            return []
        shown: Any = self.site.get_model_admin(Schedule)
        rows = Schedule.objects.using(_alias_of_schedules()).order_by("name")
        return [(row, shown.state(row), shown.next_time(row)) for row in rows]

    @cached_property
    def charts(self) -> list[tuple[str, list[Any], str | None]]:
        """The charts of each database, or why there are none."""
        found: list[tuple[str, list[Any], str | None]] = []
        several = len(by_alias()) > 1
        for alias in sorted(by_alias()):
            try:
                drawn = charts_by_span(connection_for(alias))
            except Error as error:
                found.append((alias if several else "", [], in_words(error)))
            else:
                found.append((alias if several else "", drawn, None))
        return found

    @property
    def may_reap(self) -> bool:
        """Whether the user may run passes."""
        return bool(self.request.user.has_perm("jobreaper.run_reaper"))

    @property
    def may_pause(self) -> bool:
        """Whether the user may pause a stage or type."""
        return self.may(Pause, "add")

    @property
    def may_resume(self) -> bool:
        """Whether the user may resume one."""
        return self.may(Pause, "delete")

    @property
    def may_operate_schedules(self) -> bool:
        """Whether the user may pause and resume schedules."""
        return self.may(Schedule, "change")


def _alias_of_schedules() -> str:
    return next(table.alias for table in job_tables() if table.model is Job)
