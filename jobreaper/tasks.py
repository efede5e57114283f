"""The Celery tasks. Thin: they call core code and return what is worth reading in a result."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery import Task, shared_task

from jobreaper import reaper, retention
from jobreaper.celery import dispatcher
from jobreaper.celery.schedule import DISPATCH, PRUNE, PRUNE_INTERVAL_SEC, REAP
from jobreaper.celery.task import drop_left_open
from jobreaper.states import Trigger


@shared_task(name=REAP, ignore_result=True, bind=True)
def reap(self: Task[..., Any]) -> dict[str, Any]:
    """Run one pass over every job table."""
    drop_left_open(self)
    result = reaper.reap(trigger=Trigger.BEAT)
    return {
        "requeued": result.requeued,
        "failed": result.failed,
        "held": result.held,
        "errors": result.all_errors,
    }


@shared_task(name=DISPATCH, ignore_result=True, bind=True)
def dispatch(self: Task[..., Any]) -> dict[str, Any]:
    """Send the due jobs of every job table to Celery."""
    drop_left_open(self)
    return asdict(dispatcher.dispatch())


@shared_task(name=PRUNE, ignore_result=True, bind=True)
def prune(self: Task[..., Any]) -> dict[str, Any]:
    """Delete finished jobs, events and passes past their age; what is left goes the next time."""
    drop_left_open(self)
    return asdict(retention.prune(budget_sec=PRUNE_INTERVAL_SEC / 4))
