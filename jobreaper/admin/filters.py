"""Filters of the admin lists. None searches the whole table for its choices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobreaper import conf
from jobreaper.states import (
    EventType,
    LeaseState,
    Status,
    Trigger,
    WorkerKind,
    WorkerState,
)
from jobreaper.tables import job_tables

if TYPE_CHECKING:
    Rows = QuerySet[Any]
    ModelAdmin = admin.ModelAdmin[Any]

# At most this many rows of a backlog are searched for stages.
SAMPLED_ROWS: Final = 10_000
MOST_CHOICES: Final = 200

ENDED: Final = (Status.SUCCESS, Status.FAILED, Status.CANCELLED)

# The columns that no job of a status has a value for.
EMPTY: Final[dict[str | None, tuple[str, ...]]] = {
    Status.QUEUED: ("lease", "locked_by"),
    Status.PROCESSING: ("next_run",),
    **dict.fromkeys(ENDED, ("lease", "locked_by", "next_run")),
}


class ValueFilter(admin.SimpleListFilter):
    """A filter by one value, which also works when that value is no longer offered.

    Django drops a filter that has no choices. Then the list of a worker's jobs would become the
    list of all jobs once that worker is done, and "select all" would select every job.
    """

    # The choices, where they are always the same.
    words: Iterable[str] = ()

    @property
    def is_indexed(self) -> bool:
        """Whether an index finds the rows with the selected value."""
        return False

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return the choices."""
        return [str(word) for word in self.words]

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the rows with ``value``."""
        return rows.filter(**{str(self.parameter_name): value})

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterator[tuple[str, Any]]:
        """Return the choices, which always include the selected one."""
        values = list(self.offered(model_admin.get_queryset(request)))
        chosen = self.value()
        if chosen is not None and chosen not in values:
            values.append(chosen)
        return ((value, value or _("(none)")) for value in values)

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        """Return the rows with the selected value, or all rows if none is selected."""
        value = self.value()
        return queryset if value is None else self.having(queryset, value)


class StatusFilter(ValueFilter):
    """Jobs by status."""

    title = _("status")
    parameter_name = "status"
    words = Status

    @property
    def is_indexed(self) -> bool:
        """Whether they are unfinished ones."""
        return self.value() in (Status.QUEUED, Status.PROCESSING)


def ended_status(request: HttpRequest) -> str | None:
    """Return the status that a list is filtered by, if it is one of jobs that have ended."""
    chosen = request.GET.get(StatusFilter.parameter_name)
    return chosen if chosen in ENDED else None


def filled(columns: Iterable[Any], request: HttpRequest) -> list[Any]:
    """Return the columns without those that are empty in a list filtered by status."""
    empty = EMPTY.get(request.GET.get(StatusFilter.parameter_name), ())
    return [column for column in columns if column not in empty]


class StageFilter(ValueFilter):
    """Jobs by stage: the stages that have a policy, and those of unfinished jobs."""

    title = _("stage")
    parameter_name = "stage"

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return the configured stages and those of unfinished jobs."""
        return sorted(_of_unfinished(rows, "stage").union(conf.settings().stages))

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the rows of that stage. A job without a stage has the stage ``""``."""
        return rows.filter(Q(stage=value) if value else Q(stage=None) | Q(stage=""))


class QueueFilter(ValueFilter):
    """Jobs by queue: those that have a limit, and those of unfinished jobs."""

    title = _("queue")
    parameter_name = "queue"

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return the limited queues and those of unfinished jobs."""
        return sorted(_of_unfinished(rows, "queue").union(conf.settings().queues))


def _of_unfinished(rows: Rows, field: str) -> set[str]:
    """Return the values of a field in the rows that the two partial indexes contain."""
    # Sorted like the indexes. Otherwise, PostgreSQL may read a large table to find a few unfinished
    # jobs at its end.
    running, queued = (
        rows.filter(status=status).order_by(*order).values_list(field, flat=True)
        for status, order in (
            (Status.PROCESSING, ["lease_expires_at"]),
            (Status.QUEUED, ["next_earliest_run_at", "pk"]),
        )
    )
    unfinished = running[:SAMPLED_ROWS].union(queued[:SAMPLED_ROWS])
    return {value or "" for value in unfinished[:MOST_CHOICES]}


class LeaseFilter(ValueFilter):
    """Running jobs by the state of their leases."""

    title = _("lease")
    parameter_name = "lease"
    words = LeaseState
    is_indexed = True

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the running jobs whose lease is in that state."""
        return rows.filter(status=Status.PROCESSING, lease_state=value)


class ErrorFilter(ValueFilter):
    """Failed jobs by error. It offers nothing by itself: the groups above the list do."""

    title = _("error")
    parameter_name = "error"

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return no choice beside the selected one."""
        return ()

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the failed jobs with that code. A job without a code has the code ``""``."""
        code = Q(fail_code=value) if value else Q(fail_code=None) | Q(fail_code="")
        return rows.filter(code, status=Status.FAILED)


def order_of_ended(model: Any) -> str | None:
    """Return the field by which an index has the jobs of each status that have ended."""
    for index in model._meta.indexes:
        if index.fields == ["status", "finished_at"]:
            return "finished_at"
    return None


def held(rows: Rows) -> Rows:
    """Return the running jobs that a worker holds, in no order."""
    return rows.filter(status=Status.PROCESSING).exclude(locked_by=None).order_by()


class WorkerFilter(ValueFilter):
    """Running jobs by worker."""

    title = _("worker")
    parameter_name = "worker"
    is_indexed = True

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return the workers of the running jobs."""
        workers = held(rows).values_list("locked_by", flat=True)
        return sorted(workers.distinct()[:MOST_CHOICES])

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the running jobs that the worker holds."""
        return rows.filter(status=Status.PROCESSING, locked_by=value)


class WorkerStateFilter(ValueFilter):
    """Workers by how they stand."""

    title = _("state")
    parameter_name = "state"
    words = WorkerState


class KindFilter(ValueFilter):
    """Workers by what their process is."""

    title = _("kind")
    parameter_name = "kind"
    words = WorkerKind


class EventTypeFilter(ValueFilter):
    """Events by type."""

    title = _("type")
    parameter_name = "type"
    words = EventType


class TableFilter(ValueFilter):
    """Events by job table."""

    title = _("table")
    parameter_name = "table"

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return the names of the job tables in the same database."""
        return [table.name for table in job_tables() if table.alias == rows.db]


class PassTableFilter(TableFilter):
    """Passes over a job table."""

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the passes with counts for that table."""
        return rows.filter(counts__has_key=value)


class TriggerFilter(ValueFilter):
    """Passes by trigger."""

    title = _("trigger")
    parameter_name = "trigger"
    words = Trigger


class OutcomeFilter(ValueFilter):
    """Passes by result."""

    title = _("outcome")
    parameter_name = "outcome"

    OUTCOMES: Final = {
        "reaped": Q(requeued__gt=0) | Q(failed__gt=0),
        "nothing to do": Q(requeued=0, failed=0, held=False, error=None),
        "held": Q(held=True),
        "error": ~Q(error=None),
    }
    words = OUTCOMES

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the passes with that outcome."""
        return rows.filter(self.OUTCOMES.get(value, Q(pk__in=())))
