"""Celery: the beat schedule, and the same schedule as periodic tasks of django-celery-beat."""

from __future__ import annotations

from jobreaper.celery.schedule import beat_schedule

__all__ = ["beat_schedule"]
