"""Filters of the admin lists. None looks for its choices in the whole table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobreaper import conf
from jobreaper.states import EventType, LeaseState, Status, Trigger
from jobreaper.tables import job_tables

if TYPE_CHECKING:
    Rows = QuerySet[Any]
    ModelAdmin = admin.ModelAdmin[Any]

# A backlog of millions is looked at no further than this for its stages.
SAMPLED_ROWS: Final = 10_000
MOST_CHOICES: Final = 200


class ValueFilter(admin.SimpleListFilter):
    """A filter by one value, which holds also when that value is not on offer any more.

    Django drops a filter that has nothing to offer: the list of a worker's jobs would become the
    list of all jobs once that worker is done, and "select all" would mean every job there is.
    """

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return the values to choose from."""
        raise NotImplementedError

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the rows with ``value``."""
        return rows.filter(**{str(self.parameter_name): value})

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterator[tuple[str, Any]]:
        """Return the choices, the chosen one always among them."""
        values = list(self.offered(model_admin.get_queryset(request)))
        chosen = self.value()
        if chosen is not None and chosen not in values:
            values.append(chosen)
        return ((value, value or _("(none)")) for value in values)

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        """Return the rows with the chosen value, all where none is chosen."""
        value = self.value()
        return queryset if value is None else self.having(queryset, value)


class StatusFilter(ValueFilter):
    """Jobs by status."""

    title = _("status")
    parameter_name = "status"

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return every status."""
        return [status.value for status in Status]


class StageFilter(ValueFilter):
    """Jobs by stage, among the stages that have a policy and those of unfinished jobs."""

    title = _("stage")
    parameter_name = "stage"

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return the configured stages and what the two partial indexes lead to."""
        # Sorted as the indexes are: otherwise PostgreSQL may take a few unfinished jobs from the
        # end of a large table by reading all of it.
        running, queued = (
            rows.filter(status=status).order_by(*order).values_list("stage", flat=True)
            for status, order in (
                (Status.PROCESSING, ["lease_expires_at"]),
                (Status.QUEUED, ["next_earliest_run_at", "pk"]),
            )
        )
        unfinished = running[:SAMPLED_ROWS].union(queued[:SAMPLED_ROWS])
        found = {stage or "" for stage in unfinished[:MOST_CHOICES]}
        return sorted(found.union(conf.settings().stages))

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the rows of that stage; a job without one has the stage ``""``."""
        return rows.filter(Q(stage=value) if value else Q(stage=None) | Q(stage=""))


class LeaseFilter(ValueFilter):
    """Running jobs by the state of their lease."""

    title = _("lease")
    parameter_name = "lease"

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return every lease state."""
        return [state.value for state in LeaseState]

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the running jobs whose lease is in that state."""
        return rows.filter(status=Status.PROCESSING, lease_state=value)


class WorkerFilter(ValueFilter):
    """Running jobs by worker."""

    title = _("worker")
    parameter_name = "worker"

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return the workers of the running jobs."""
        running = rows.filter(status=Status.PROCESSING).exclude(locked_by=None).order_by()
        workers = running.values_list("locked_by", flat=True)
        return sorted(workers.distinct()[:MOST_CHOICES])

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the running jobs that the worker holds."""
        return rows.filter(status=Status.PROCESSING, locked_by=value)


class EventTypeFilter(ValueFilter):
    """Events by type."""

    title = _("type")
    parameter_name = "type"

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return every event type."""
        return [event_type.value for event_type in EventType]


class TableFilter(ValueFilter):
    """Events by job table."""

    title = _("table")
    parameter_name = "table"

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return the names of the job tables."""
        return [table.name for table in job_tables()]


class PassTableFilter(TableFilter):
    """Passes that went over a job table."""

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the passes with counts for that table."""
        return rows.filter(counts__has_key=value)


class TriggerFilter(ValueFilter):
    """Passes by who asked for them."""

    title = _("trigger")
    parameter_name = "trigger"

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return every trigger."""
        return [trigger.value for trigger in Trigger]


class OutcomeFilter(ValueFilter):
    """Passes by what came of them."""

    title = _("outcome")
    parameter_name = "outcome"

    OUTCOMES: Final = {
        "reaped": Q(requeued__gt=0) | Q(failed__gt=0),
        "nothing to do": Q(requeued=0, failed=0, held=False, error=None),
        "held": Q(held=True),
        "error": ~Q(error=None),
    }

    def offered(self, rows: Rows) -> Iterable[str]:
        """Return every outcome."""
        return self.OUTCOMES

    def having(self, rows: Rows, value: str) -> Rows:
        """Return the passes with that outcome."""
        return rows.filter(self.OUTCOMES.get(value, Q(pk__in=())))
