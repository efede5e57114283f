"""The package's own tables: a ready-made job table, pauses, events, passes and totals."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KT
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobreaper.base import Digest as Digest  # migrations look for it here
from jobreaper.base import LeasedJob, LeaseIndex, index_by_kind
from jobreaper.ids import new_id
from jobreaper.metering import JobEventQuerySet
from jobreaper.progress import TracksProgress
from jobreaper.states import DEFAULT_QUEUE, Status, Trigger, WorkerKind
from jobreaper.tracecontext import current_traceparent


class Job(TracksProgress, LeasedJob):
    """A ready-made job table for teams without one. ``jobreaper.enqueue`` creates its rows."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    type = models.TextField(help_text=_("What to do; the handler is looked up by it."))
    priority = models.SmallIntegerField(
        default=0, db_default=0, help_text=_("Jobs of a higher priority are claimed first.")
    )
    queue = models.TextField(
        blank=True,
        default=DEFAULT_QUEUE,
        db_default=DEFAULT_QUEUE,
        help_text=_("Which workers run it: those of manage.py work --queue, and those of all."),
    )
    org_id = models.TextField(null=True, blank=True, help_text=_("Whose job it is."))
    payload = models.JSONField(
        blank=True, default=dict, db_default=models.Value({}, models.JSONField())
    )
    result = models.JSONField(
        null=True, blank=True, editable=False, help_text=_("What the job's function returned.")
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
        verbose_name, verbose_name_plural = _("queue job"), _("queue jobs")
        indexes: ClassVar[list[models.Index]] = [
            LeaseIndex.named(
                "jobreaper_jobs",
                "finished",
                fields=["status", "finished_at"],
                condition=Q(finished_at__isnull=False),
            ),
            index_by_kind("jobreaper_jobs", ["type", "queue", "priority"]),
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
        # The table does this by itself; this is for the instance.
        if self._state.adding and self.stage is None:
            self.stage = self.type
        super().save(*args, **kwargs)


class Pause(models.Model):
    """A stage, a queue, or a type of ``Job``, whose jobs are neither claimed nor dispatched for
    now.
    """

    id = models.BigAutoField(primary_key=True)
    table = models.TextField(help_text=_("The job table's name."))
    name = models.TextField(help_text=_("The stage, the type or queue:… that is paused."))
    reason = models.TextField(null=True, blank=True, help_text=_("Why, for others to read."))
    by = models.TextField(null=True, blank=True, help_text=_("Who paused it."))
    at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "jobreaper_pauses"
        verbose_name, verbose_name_plural = _("pause"), _("pauses")
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["table", "name"], name="uniq_jobreaper_pauses")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.table}"


class JobEvent(models.Model):
    """What happened to a job, written in the same transaction.

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

    objects: ClassVar[Any] = JobEventQuerySet.as_manager()

    class Meta:
        db_table = "job_events"
        verbose_name, verbose_name_plural = _("job event"), _("job events")
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["job_id", "id"], name="idx_job_events_job"),
            models.Index(fields=["at"], name="idx_job_events_at"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.table} {self.job_id}"

    @property
    def details(self) -> dict[str, Any]:
        """The event's details, empty if a foreign writer gave none."""
        details = self.data.get("details") if isinstance(self.data, dict) else None
        return details if isinstance(details, dict) else {}


class RedisQueue(JobEvent):
    """The page of the Redis queue in the admin, with permissions of its own; it has no rows."""

    class Meta:
        proxy = True
        default_permissions = ("view", "change", "delete")
        verbose_name = verbose_name_plural = _("Redis queue")


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
    machine = models.TextField(
        null=True, help_text=_("The machine that ran it, from its start to its end.")
    )
    machine_sec = models.FloatField(
        null=True, help_text=_("The machine's own clock at the start, in seconds.")
    )
    counts = models.JSONField(
        default=dict, help_text=_("For each table, how many jobs were requeued and failed.")
    )
    requeued = models.IntegerField(default=0, db_default=0)
    failed = models.IntegerField(default=0, db_default=0)
    held = models.BooleanField(
        default=False, db_default=False, help_text=_("Nothing was reaped, on purpose.")
    )
    held_reason = models.TextField(null=True, blank=True)
    # Workers that had fallen silent together by then have a grace from the end of this pass on.
    silent_until = models.DateTimeField(null=True)
    error = models.TextField(null=True, blank=True)

    class Meta:
        db_table = "jobreaper_passes"
        verbose_name, verbose_name_plural = _("reaper pass"), _("reaper passes")
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["started_at"], name="idx_jobreaper_passes_started")
        ]

    def __str__(self) -> str:
        return f"pass {self.pk}"


class Reaper(ReaperPass):
    """The Reaper page in the admin, with permissions of its own; it has no rows."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        permissions: ClassVar[Any] = [("run_reaper", "Can run passes of the reaper")]
        verbose_name = verbose_name_plural = _("reaper")


class RefusedRow(models.Model):
    """A job's row that could not be written: left out until ``next_try_at``, and forgotten when it
    could be written or is gone.
    """

    id = models.BigAutoField(primary_key=True)
    table = models.TextField(help_text=_("The job table's name."))
    verb = models.TextField(help_text=_("What could not be done to it."))
    key = models.TextField(help_text=_("The job's key."))
    since = models.DateTimeField(db_default=Now(), help_text=_("When it was first refused."))
    error = models.TextField(help_text=_("Why, the last time."))
    tries = models.IntegerField(default=1, db_default=1, help_text=_("How often it was refused."))
    next_try_at = models.DateTimeField(help_text=_("When it is tried again."))

    class Meta:
        db_table = "jobreaper_refused_rows"
        verbose_name = _("row that cannot be written")
        verbose_name_plural = _("rows that cannot be written")
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["table", "verb", "key"], name="uniq_jobreaper_refused_rows"
            )
        ]

    def __str__(self) -> str:
        return f"{self.table} {self.key}"

    @property
    def job_id(self) -> str:
        """The job's key, by the name that events have for it."""
        return self.key


class Worker(models.Model):
    """A process that holds, or held, leases; see ``jobreaper.presence``."""

    worker = models.TextField(primary_key=True, help_text=_("The worker's id."))
    kind = models.TextField(
        choices=[(kind.value, kind.value) for kind in WorkerKind],
        help_text=_("What its process is."),
    )
    host = models.TextField()
    pid = models.IntegerField()
    version = models.TextField(help_text=_("The version of jobreaper."))
    runs = models.TextField(null=True, blank=True, help_text=_("What it runs."))
    leases = models.IntegerField(
        default=0, db_default=0, help_text=_("Leases that it held when it was last seen.")
    )
    is_direct = models.BooleanField(
        default=True,
        db_default=True,
        help_text=_("Its sessions are its own. Through a pooler, the lease alone decides."),
    )
    started_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())
    stopping_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When it was told to stop.")
    )
    silent_since = models.DateTimeField(
        null=True, blank=True, help_text=_("When its lock was first seen to be free.")
    )
    gone_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When its leases were taken back.")
    )
    taken = models.IntegerField(default=0, db_default=0, help_text=_("Leases taken back."))

    class Meta:
        db_table = "jobreaper_workers"
        verbose_name, verbose_name_plural = _("worker"), _("workers")

    def __str__(self) -> str:
        return self.worker


class Schedule(models.Model):
    """A job that is made again and again; see ``jobreaper.schedule``."""

    name = models.TextField(primary_key=True)
    definition = models.JSONField(help_text=_("What the code or the settings say of it."))
    next_at = models.DateTimeField(
        null=True, blank=True, help_text=_("Its next time; none if there never is one.")
    )
    ticked_at = models.DateTimeField(
        null=True, blank=True, help_text=_("The last time for which a job was made.")
    )
    made_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When its last job was made, on time or by hand.")
    )
    job_id = models.TextField(null=True, blank=True, help_text=_("Its last job."))
    error = models.TextField(
        null=True, blank=True, help_text=_("Why its last job could not be made.")
    )
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_by = models.TextField(null=True, blank=True)
    declared_at = models.DateTimeField(
        db_default=Now(), help_text=_("Since when it has this definition.")
    )

    class Meta:
        db_table = "jobreaper_schedules"
        verbose_name, verbose_name_plural = _("schedule"), _("schedules")

    def __str__(self) -> str:
        return self.name

    @property
    def table(self) -> str:
        """The job table of its jobs."""
        return Job._meta.db_table


class Chore(models.Model):
    """What workers do beside running jobs, and when one of them began; see
    ``jobreaper.housekeeping``.
    """

    name = models.TextField(primary_key=True)
    started_at = models.DateTimeField()
    worker = models.TextField()

    class Meta:
        db_table = "jobreaper_chores"

    def __str__(self) -> str:
        return self.name


class JobState(models.Model):
    """What a job's function has saved for its next attempt; see ``Lease.save_state()``."""

    id = models.BigAutoField(primary_key=True)
    table = models.TextField(help_text=_("The job table's name."))
    job_id = models.TextField(help_text=_("The job's key."))
    state = models.JSONField(null=True)
    epoch = models.BigIntegerField(help_text=_("The epoch of the lease that saved it."))
    saved_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "jobreaper_states"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["table", "job_id"], name="uniq_jobreaper_states")
        ]

    def __str__(self) -> str:
        return f"state of {self.table} {self.job_id}"


class Total(models.Model):
    """A part of a counter's total; ``jobreaper.reaper.totals`` explains the table."""

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
    """A stage that permanently has its own series in the counters."""

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
