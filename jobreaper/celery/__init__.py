"""Celery: tasks that run under a lease, their dispatcher, and the beat schedule."""

from __future__ import annotations

from jobreaper.celery.schedule import beat_schedule
from jobreaper.celery.task import LeasedTask

__all__ = ["LeasedTask", "beat_schedule"]
