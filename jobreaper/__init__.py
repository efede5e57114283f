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
    from jobreaper.control import cancel, fail, requeue
    from jobreaper.exceptions import (
        ConfigurationError,
        JobreaperError,
        LeaseClosed,
        LeaseLost,
        NotClaimed,
        UnknownTable,
        UnsupportedDatabase,
    )
    from jobreaper.leases import Lease, claim, claim_next, hold
    from jobreaper.reaper import PassResult, reap
    from jobreaper.tables import register
    from jobreaper.worker import worker_id

__version__ = "0.1.0"

_HOMES = {
    "base": ("LeasedJob",),
    "celery": ("LeasedTask", "beat_schedule"),
    "control": ("cancel", "fail", "requeue"),
    "exceptions": (
        "ConfigurationError",
        "JobreaperError",
        "LeaseClosed",
        "LeaseLost",
        "NotClaimed",
        "UnknownTable",
        "UnsupportedDatabase",
    ),
    "leases": ("Lease", "claim", "claim_next", "hold"),
    "reaper": ("PassResult", "reap"),
    "tables": ("register",),
    "worker": ("worker_id",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ConfigurationError",
    "JobreaperError",
    "Lease",
    "LeaseClosed",
    "LeaseLost",
    "LeasedJob",
    "LeasedTask",
    "NotClaimed",
    "PassResult",
    "UnknownTable",
    "UnsupportedDatabase",
    "beat_schedule",
    "cancel",
    "claim",
    "claim_next",
    "fail",
    "hold",
    "reap",
    "register",
    "requeue",
    "worker_id",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'jobreaper' has no attribute {name!r}")
    return getattr(import_module(f"jobreaper.{_HOME_OF[name]}"), name)
