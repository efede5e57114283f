"""Celery: tasks that run under a lease, their dispatcher, and the beat schedule.

The names are imported when they are first used: settings need ``beat_schedule`` before models are
loaded, and ``LeasedTask`` needs models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobreaper.celery.schedule import beat_schedule
    from jobreaper.celery.task import LeasedTask

__all__ = ["LeasedTask", "beat_schedule"]

_HOME_OF = {"LeasedTask": "task", "beat_schedule": "schedule"}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'jobreaper.celery' has no attribute {name!r}")
    return getattr(import_module(f"jobreaper.celery.{_HOME_OF[name]}"), name)
