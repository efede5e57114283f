"""The package's own tables: a ready-made job table, what is paused, the events, the passes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models import Count, Func, Q, Sum
from django.db.models.expressions import RawSQL
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce, Now, TruncDate
from django.utils.translation import gettext_lazy as _

from jobreaper import sql
from jobreaper.base import LeasedJob, LeaseIndex
from jobreaper.ids import new_id
from jobreaper.states import ENDED_RUNS, FAILED_RUNS, Status, Trigger
from jobreaper.tracecontext import current_traceparent


class Digest(Func):
    """SHA-256 of a text: what stands in the index for a key of any length."""

    # convert_to() would be clearer, and PostgreSQL does not let an index depend on it.
    template = sql.source("fragments/digest").strip().format(text="%(expressions)s")
    output_field = models.BinaryField()


class Job(LeasedJob):
    """A ready-made job table for teams without one. ``jobreaper.enqueue`` makes its rows."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    type = models.TextField(help_text=_("What to do; the handler is looked up by it."))
    priority = models.SmallIntegerField(
        default=0, db_default=0, help_text=_("Jobs of a higher priority are claimed first.")
    )
    org_id = models.TextField(null=True, blank=True, help_text=_("Whose job it is."))
    payload = models.JSONField(
        blank=True, default=dict, db_default=models.Value({}, models.JSONField())
    )
    dedupe_key = models.TextField(
        null=True,
        blank=True,
        help_text=_("No two queued or processing jobs have the same; empty: never merged."),
    )
    traceparent = models.TextField(
        null=True,
        blank=True,
        editable=False,
        default=current_traceparent,
        help_text=_("The trace in which the job was made."),
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True, db_default=Now(), editable=False)

    class Meta:
        db_table = "jobreaper_jobs"
        indexes: ClassVar[list[models.Index]] = [
            LeaseIndex.named(
                "jobreaper_jobs",
                "finished",
                fields=["status", "finished_at"],
                condition=Q(finished_at__isnull=False),
            )
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                Digest("dedupe_key"),
                condition=Q(
                    dedupe_key__isnull=False,
                    status__in=[Status.QUEUED.value, Status.PROCESSING.value],
                ),
                name="uniq_jobreaper_jobs_dedupe",
            )
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.pk}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save as ``LeasedJob`` does. The stage of a new job is its type unless it has its own."""
        if self._state.adding and self.stage is None:
            self.stage = self.type
        super().save(*args, **kwargs)


class Pause(models.Model):
    """A stage, or a type of ``Job``, of which no job is claimed or dispatched for now."""

    id = models.BigAutoField(primary_key=True)
    table = models.TextField(help_text=_("The job table's name."))
    name = models.TextField(help_text=_("The stage or the type that is paused."))
    reason = models.TextField(null=True, blank=True, help_text=_("Why, for others to read."))
    by = models.TextField(null=True, blank=True, help_text=_("Who paused it."))
    at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "jobreaper_pauses"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["table", "name"], name="uniq_jobreaper_pauses")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.table}"


class JobEventQuerySet(models.QuerySet["JobEvent"]):
    """Sums over the events."""

    def metering(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> models.QuerySet[JobEvent, dict[str, Any]]:
        """Return a dict a table, org, type and UTC day: ``runs`` that workers ended, ``failures``
        among them, ``seconds`` they took. With times, of the events from ``since`` to before
        ``until`` only: by these an index is used.

        A run whose worker was lost has no end that could be measured; its event is the reaper's.
        """
        chosen = self.filter(type__in=ENDED_RUNS)
        if since is not None:
            chosen = chosen.filter(at__gte=since)
        if until is not None:
            chosen = chosen.filter(at__lt=until)
        sums: models.QuerySet[JobEvent, Any] = (
            chosen.values(
                "table",
                day=TruncDate("at", tzinfo=UTC),
                org_id=KT("data__details__org_id"),
                job_type=Coalesce(KT("data__details__type"), KT("data__details__stage")),
            )
            .annotate(
                runs=Count("*"),
                failures=Count("pk", filter=Q(type__in=FAILED_RUNS)),
                seconds=Sum(RawSQL(sql.source("fragments/measured_seconds"), [])),  # noqa: S611
            )
            .order_by("day", "table", "org_id", "job_type")
        )
        return sums


class JobEvent(models.Model):
    """What happened to a job, written in the transaction that did it.

    ``type`` and ``table`` are generated from ``data``: a writer in any language inserts
    ``(job_id, data)`` and nothing else. There is no foreign key, so events outlive their job.
    """

    id = models.BigAutoField(primary_key=True)
    job_id = models.TextField()
    data = models.JSONField()
    at = models.DateTimeField(db_default=Now())
    type = models.GeneratedField(
        expression=KT("data__type"), output_field=models.TextField(null=True), db_persist=True
    )
    table = models.GeneratedField(
        expression=KT("data__table"), output_field=models.TextField(null=True), db_persist=True
    )

    objects: ClassVar[models.Manager[Any]] = JobEventQuerySet.as_manager()

    class Meta:
        db_table = "job_events"
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["job_id", "id"], name="idx_job_events_job"),
            models.Index(fields=["at"], name="idx_job_events_at"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.table} {self.job_id}"

    @property
    def details(self) -> dict[str, Any]:
        """The event's details, empty where a foreign writer gave none."""
        details = self.data.get("details") if isinstance(self.data, dict) else None
        return details if isinstance(details, dict) else {}


class ReaperPass(models.Model):
    """One run of the reaper over the job tables of one database."""

    id = models.BigAutoField(primary_key=True)
    started_at = models.DateTimeField(db_default=Now())
    duration_ms = models.IntegerField(default=0, db_default=0)
    trigger = models.TextField(
        default=Trigger.PYTHON.value,
        choices=[(trigger.value, trigger.value) for trigger in Trigger],
        help_text=_("Who asked for the pass."),
    )
    reaper = models.TextField(help_text=_("The process that ran it."))
    counts = models.JSONField(
        default=dict, help_text=_("For each table, how many jobs were requeued and failed.")
    )
    requeued = models.IntegerField(default=0, db_default=0)
    failed = models.IntegerField(default=0, db_default=0)
    held = models.BooleanField(
        default=False, db_default=False, help_text=_("Nothing was reaped, on purpose.")
    )
    held_reason = models.TextField(null=True, blank=True)
    error = models.TextField(null=True, blank=True)

    class Meta:
        db_table = "jobreaper_passes"
        verbose_name_plural = "reaper passes"
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["started_at"], name="idx_jobreaper_passes_started")
        ]

    def __str__(self) -> str:
        return f"pass {self.pk}"


class Total(models.Model):
    """A part of what a counter has counted; ``jobreaper.totals`` explains the table."""

    id = models.BigAutoField(primary_key=True)
    name = models.TextField(help_text=_("What is counted."))
    table = models.TextField(help_text=_("The job table, empty where it is none of them."))
    stage = models.TextField(default="", db_default="")
    count = models.BigIntegerField(default=1, db_default=1)
    microseconds = models.BigIntegerField(
        default=0, db_default=0, help_text=_("The durations of what was counted, added up.")
    )
    last_at = models.DateTimeField(db_default=Now(), help_text=_("When it was last counted."))

    class Meta:
        db_table = "jobreaper_totals"

    def __str__(self) -> str:
        return f"{self.name} {self.table} {self.stage}: {self.count}"


class NamedStage(models.Model):
    """A stage that has a series of its own in the counters, for good."""

    id = models.BigAutoField(primary_key=True)
    table = models.TextField(help_text=_("The job table."))
    stage = models.TextField()
    place = models.SmallIntegerField(
        null=True,
        help_text=_("Which of the names of its table; none by a policy."),
    )

    class Meta:
        db_table = "jobreaper_stages"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["table", "stage"], name="uniq_jobreaper_stages"),
            models.UniqueConstraint(fields=["table", "place"], name="uniq_jobreaper_places"),
        ]

    def __str__(self) -> str:
        return f"{self.table} {self.stage}"
