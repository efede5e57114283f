"""The package's own tables: a ready-made job table, the events, the reaper's passes."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.db import models
from django.db.models.fields.json import KT
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobreaper.base import LeasedJob
from jobreaper.states import Trigger


class Job(LeasedJob):
    """A ready-made job table for teams without one."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    type = models.TextField(help_text=_("What to do; the handler is looked up by it."))
    org_id = models.TextField(null=True, blank=True, help_text=_("Whose job it is."))
    payload = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    dedupe_key = models.TextField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True, db_default=Now(), editable=False)

    class Meta:
        db_table = "jobreaper_jobs"

    def __str__(self) -> str:
        return f"{self.type} {self.pk}"


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
