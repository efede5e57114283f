"""jobreaper keeps background jobs from getting stuck: leases, heartbeats and a reaper for jobs in
PostgreSQL tables.

The public names are imported when first used, so that ``import jobreaper`` works before Django's
apps are loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobreaper.base import LeasedJob
    from jobreaper.celery import LeasedTask, beat_schedule
    from jobreaper.claims import claim, claim_next, hold
    from jobreaper.control import cancel, fail, requeue
    from jobreaper.dedupe import make_dedupe_key
    from jobreaper.exceptions import (
        BadPayload,
        ConfigurationError,
        JobreaperError,
        LeaseClosed,
        LeaseLost,
        NotClaimed,
        NotLeasable,
        UnknownTable,
        UnsupportedDatabase,
    )
    from jobreaper.handlers import job_handler
    from jobreaper.leases import Lease
    from jobreaper.pauses import pause, resume
    from jobreaper.policies import can_retry, get_backoff_delay_ms
    from jobreaper.queue import enqueue, enqueue_many, mark_failure, mark_success
    from jobreaper.reaper import PassResult, reap
    from jobreaper.retention import prune
    from jobreaper.tables import register
    from jobreaper.worker import worker_id

__version__ = "0.1.0"

_HOMES = {
    "base": ("LeasedJob",),
    "celery": (
        "LeasedTask",
        "beat_schedule",
    ),
    "claims": (
        "claim",
        "claim_next",
        "hold",
    ),
    "control": (
        "cancel",
        "fail",
        "requeue",
    ),
    "dedupe": ("make_dedupe_key",),
    "exceptions": (
        "BadPayload",
        "ConfigurationError",
        "JobreaperError",
        "LeaseClosed",
        "LeaseLost",
        "NotClaimed",
        "NotLeasable",
        "UnknownTable",
        "UnsupportedDatabase",
    ),
    "handlers": ("job_handler",),
    "leases": ("Lease",),
    "pauses": (
        "pause",
        "resume",
    ),
    "policies": (
        "can_retry",
        "get_backoff_delay_ms",
    ),
    "queue": (
        "enqueue",
        "enqueue_many",
        "mark_failure",
        "mark_success",
    ),
    "reaper": (
        "PassResult",
        "reap",
    ),
    "retention": ("prune",),
    "tables": ("register",),
    "worker": ("worker_id",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BadPayload",
    "ConfigurationError",
    "JobreaperError",
    "Lease",
    "LeaseClosed",
    "LeaseLost",
    "LeasedJob",
    "LeasedTask",
    "NotClaimed",
    "NotLeasable",
    "PassResult",
    "UnknownTable",
    "UnsupportedDatabase",
    "beat_schedule",
    "can_retry",
    "cancel",
    "claim",
    "claim_next",
    "enqueue",
    "enqueue_many",
    "fail",
    "get_backoff_delay_ms",
    "hold",
    "job_handler",
    "make_dedupe_key",
    "mark_failure",
    "mark_success",
    "pause",
    "prune",
    "reap",
    "register",
    "requeue",
    "resume",
    "worker_id",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'jobreaper' has no attribute {name!r}")
    return getattr(import_module(f"jobreaper.{_HOME_OF[name]}"), name)
