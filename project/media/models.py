"""The tables `jobs` (clips and burned-in text) and `asr_jobs` (speech recognition)."""

from django.db import models
from django.db.models.functions import Now


class MediaJob(models.Model):
    status = models.TextField(default="queued", db_default="queued")
    stage = models.TextField(null=True, blank=True)
    last_heartbeat_at = models.DateTimeField(null=True, blank=True)
    attempt_count = models.IntegerField(default=0, db_default=0)
    payload = models.JSONField(default=dict, db_default={}, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.stage or 'job'} {self.pk}"


class Job(MediaJob):
    """A clip to cut or a text to burn in."""

    class Meta:
        db_table = "jobs"


class AsrJob(MediaJob):
    """A recording whose speech is to be written down."""

    class Meta:
        db_table = "asr_jobs"
        verbose_name = "speech recognition job"
