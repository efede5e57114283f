"""The Celery tasks. Thin: they call core code and return what is worth reading in a result."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery import shared_task

from jobreaper import reaper, retention
from jobreaper.celery import dispatcher
from jobreaper.celery.schedule import DISPATCH, PRUNE, PRUNE_INTERVAL_SEC, REAP
from jobreaper.states import Trigger


@shared_task(name=REAP, ignore_result=True)
def reap() -> dict[str, Any]:
    """Run one pass over every job table."""
    result = reaper.reap(trigger=Trigger.BEAT)
    return {
        "requeued": result.requeued,
        "failed": result.failed,
        "held": result.held,
        "errors": result.all_errors,
    }


@shared_task(name=DISPATCH, ignore_result=True)
def dispatch() -> dict[str, Any]:
    """Send the due jobs of every job table to Celery."""
    return asdict(dispatcher.dispatch())


@shared_task(name=PRUNE, ignore_result=True)
def prune() -> dict[str, Any]:
    """Delete finished jobs, events and passes past their age; what is left goes the next time."""
    return asdict(retention.prune(budget_sec=PRUNE_INTERVAL_SEC / 4))
