"""The Celery tasks. They only call core code and return a short result."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery import Task, shared_task

from jobreaper import reaper
from jobreaper.celery import dispatcher
from jobreaper.celery.schedule import DISPATCH, PRUNE, REAP
from jobreaper.celery.task import drop_left_open
from jobreaper.conf import PRUNE_INTERVAL_SEC
from jobreaper.control import retention
from jobreaper.redisq import configured as redisq
from jobreaper.states import Trigger


@shared_task(name=REAP, ignore_result=True, bind=True)
def reap(self: Task[..., Any]) -> dict[str, Any]:
    """Run one pass over every job table, and over the Redis queue if one is configured."""
    drop_left_open(self)
    result = reaper.reap(trigger=Trigger.BEAT)
    queue = redisq.reap()
    return {
        "requeued": result.requeued,
        "failed": result.failed,
        "held": result.held,
        "errors": result.all_errors,
    } | ({"redis_queue": queue.as_dict()} if queue else {})


@shared_task(name=DISPATCH, ignore_result=True, bind=True)
def dispatch(self: Task[..., Any]) -> dict[str, Any]:
    """Send the due jobs of every job table to Celery."""
    drop_left_open(self)
    return asdict(dispatcher.dispatch())


@shared_task(name=PRUNE, ignore_result=True, bind=True)
def prune(self: Task[..., Any]) -> dict[str, Any]:
    """Delete old jobs, events and passes. The next run deletes what is left."""
    drop_left_open(self)
    return asdict(retention.prune(budget_sec=PRUNE_INTERVAL_SEC / 4))
