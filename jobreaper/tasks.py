"""The Celery tasks. Thin: they call core code and return what is worth reading in a result."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from jobreaper import reaper
from jobreaper.states import Trigger


@shared_task(name="jobreaper.reap", ignore_result=True)
def reap() -> dict[str, Any]:
    """Run one pass over every job table."""
    result = reaper.reap(trigger=Trigger.BEAT)
    return {
        "requeued": result.requeued,
        "failed": result.failed,
        "held": result.held,
        "errors": result.all_errors,
    }
