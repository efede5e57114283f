"""The tables `jobs` (clips and burned-in text) and `asr_jobs` (speech recognition)."""

from django.db import models
from django.db.models.functions import Now

from jobreaper.base import LeasedJob


class MediaJob(LeasedJob):
    """What both tables have besides the lease."""

    payload = models.JSONField(default=dict, db_default={}, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta(LeasedJob.Meta):
        abstract = True

    def __str__(self) -> str:
        return f"{self.stage or 'job'} {self.pk}"


class Job(MediaJob):
    """A clip to cut or a text to burn in."""

    class Meta(MediaJob.Meta):
        db_table = "jobs"


class AsrJob(MediaJob):
    """A recording whose speech is transcribed."""

    class Meta(MediaJob.Meta):
        db_table = "asr_jobs"
        verbose_name = "speech recognition job"
