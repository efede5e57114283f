"""Somebody else's table as a model that Django reads and never migrates."""

import uuid

from django.db import models


class ExecutorJob(models.Model):
    """A job of the document executor."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    dedupe_key = models.TextField(null=True)
    type = models.TextField()
    status = models.TextField(default="queued")
    locked_at = models.DateTimeField(null=True)
    locked_by = models.TextField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    attempts = models.IntegerField(default=0)
    last_error = models.TextField(null=True)
    payload = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        managed = False
        db_table = "executor_jobs"

    def __str__(self) -> str:
        return f"{self.type} {self.pk}"
