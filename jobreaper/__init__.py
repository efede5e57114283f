"""jobreaper keeps background jobs from getting stuck: leases, heartbeats and a reaper for jobs in
PostgreSQL tables.

The public names are imported when they are first used, so that ``import jobreaper`` works before
Django's apps are loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobreaper.base import LeasedJob, LeasedJobQuerySet
    from jobreaper.celery import LeasedTask, beat_schedule
    from jobreaper.control.by_hand import cancel, fail, requeue, run_now
    from jobreaper.control.pauses import pause, resume
    from jobreaper.control.retention import prune
    from jobreaper.exceptions import (
        BadPayload,
        BadProgress,
        BadResult,
        BadState,
        ConfigurationError,
        JobreaperError,
        LeaseClosed,
        LeaseLost,
        NotClaimed,
        NotLeasable,
        UnknownSchedule,
        UnknownTable,
        UnsupportedDatabase,
        WorkerStopping,
    )
    from jobreaper.explaining import Explanation, explain
    from jobreaper.identity import worker_id
    from jobreaper.policies import can_retry, get_backoff_delay_ms
    from jobreaper.progress import TracksProgress
    from jobreaper.protocol.aio import ahold
    from jobreaper.protocol.claim import claim, claim_next, hold
    from jobreaper.protocol.lease import Lease
    from jobreaper.queue.aio import aenqueue, aenqueue_many
    from jobreaper.queue.dedupe import make_dedupe_key
    from jobreaper.queue.enqueueing import enqueue, enqueue_many, mark_failure, mark_success
    from jobreaper.queue.handlers import job_handler
    from jobreaper.reaper import PassResult, reap
    from jobreaper.schedule import pause_schedule, resume_schedule, run_schedule
    from jobreaper.tables import register

__version__ = "0.1.0"

_HOMES = {
    "base": "LeasedJob LeasedJobQuerySet",
    "celery": "LeasedTask beat_schedule",
    "control.by_hand": "cancel fail requeue run_now",
    "control.pauses": "pause resume",
    "control.retention": "prune",
    "exceptions": (
        "BadPayload BadProgress BadResult BadState ConfigurationError JobreaperError LeaseClosed "
        "LeaseLost NotClaimed NotLeasable UnknownSchedule UnknownTable UnsupportedDatabase "
        "WorkerStopping"
    ),
    "explaining": "Explanation explain",
    "identity": "worker_id",
    "policies": "can_retry get_backoff_delay_ms",
    "progress": "TracksProgress",
    "protocol.aio": "ahold",
    "protocol.claim": "claim claim_next hold",
    "protocol.lease": "Lease",
    "queue.aio": "aenqueue aenqueue_many",
    "queue.dedupe": "make_dedupe_key",
    "queue.enqueueing": "enqueue enqueue_many mark_failure mark_success",
    "queue.handlers": "job_handler",
    "reaper.passes": "PassResult reap",
    "schedule": "pause_schedule resume_schedule run_schedule",
    "tables": "register",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "BadPayload",
    "BadProgress",
    "BadResult",
    "BadState",
    "ConfigurationError",
    "Explanation",
    "JobreaperError",
    "Lease",
    "LeaseClosed",
    "LeaseLost",
    "LeasedJob",
    "LeasedJobQuerySet",
    "LeasedTask",
    "NotClaimed",
    "NotLeasable",
    "PassResult",
    "TracksProgress",
    "UnknownSchedule",
    "UnknownTable",
    "UnsupportedDatabase",
    "WorkerStopping",
    "aenqueue",
    "aenqueue_many",
    "ahold",
    "beat_schedule",
    "can_retry",
    "cancel",
    "claim",
    "claim_next",
    "enqueue",
    "enqueue_many",
    "explain",
    "fail",
    "get_backoff_delay_ms",
    "hold",
    "job_handler",
    "make_dedupe_key",
    "mark_failure",
    "mark_success",
    "pause",
    "pause_schedule",
    "prune",
    "reap",
    "register",
    "requeue",
    "resume",
    "resume_schedule",
    "run_now",
    "run_schedule",
    "worker_id",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'jobreaper' has no attribute {name!r}")
    return getattr(import_module(f"jobreaper.{_HOME_OF[name]}"), name)
