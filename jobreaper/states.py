"""The only vocabulary: statuses, the transitions between them, event types and reasons.

SQL statements, models, admin and logs take their words from here, so each word is written once.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Status(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"
    PROCESSING = "processing"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({Status.SUCCESS, Status.FAILED, Status.CANCELLED})

# Every transition a verb of this package may make. A success is never taken back: requeueing it
# would run its effects twice.
TRANSITIONS: Final = MappingProxyType(
    {
        Status.QUEUED: frozenset({Status.PROCESSING, Status.FAILED, Status.CANCELLED}),
        Status.PROCESSING: frozenset(
            {Status.QUEUED, Status.SUCCESS, Status.FAILED, Status.CANCELLED}
        ),
        Status.SUCCESS: frozenset[Status](),
        Status.FAILED: frozenset({Status.QUEUED}),
        Status.CANCELLED: frozenset({Status.QUEUED}),
    }
)


def sources(target: Status) -> tuple[Status, ...]:
    """Return the statuses from which a job may be moved to ``target``, in declaration order."""
    return tuple(status for status in Status if target in TRANSITIONS[status])


class LeaseState(StrEnum):
    """How a processing job's lease stands, judged by the database's clock."""

    LIVE = "live"
    LATE = "late"
    EXPIRED = "expired"
    NONE = "none"


class EventType(StrEnum):
    """``type`` of a JobEvent. The part before the colon says who acted."""

    REAPER_REQUEUED = "reaper:requeued"
    REAPER_FAILED_TIMEOUT = "reaper:failed(timeout)"
    REAPER_FAILED_POISON = "reaper:failed(poison)"
    REAPER_FAILED_DEADLINE = "reaper:failed(deadline)"
    JOB_ENQUEUED = "job:enqueued"
    JOB_WORKER_LOST = "job:worker_lost"
    JOB_FINISHED = "job:finished"
    JOB_RETRIED = "job:retried"
    JOB_FAILED = "job:failed"
    JOB_RELEASED = "job:released"
    JOB_CANCELLED = "job:cancelled"
    JOB_STALE_WRITE_REJECTED = "job:stale_write_rejected"
    JOB_TRACED = "job:traced"
    ADMIN_REQUEUED = "admin:requeued"
    ADMIN_FAILED = "admin:failed"
    ADMIN_CANCELLED = "admin:cancelled"


# Events that end a run which a worker saw to its end, for metering.
ENDED_RUNS: Final = (EventType.JOB_FINISHED, EventType.JOB_RETRIED, EventType.JOB_FAILED)
FAILED_RUNS: Final = (EventType.JOB_RETRIED, EventType.JOB_FAILED)


class Counted(StrEnum):
    """``name`` of a ``Total``. ``docs/metrics.md`` says which events or passes each one counts."""

    REQUEUES = "requeues"
    FAILURES = "failures"
    LOST_AND_REQUEUED = "lost_and_requeued"
    LOST_AND_FAILED = "lost_and_failed"
    STALE_WRITES = "stale_writes"
    SCANS = "scans"
    CLEAN_SCANS = "clean_scans"
    HELD_PASSES = "held_passes"


class FailCode(StrEnum):
    """``fail_code`` values the reaper writes. Workers may write any other text."""

    TIMEOUT = "timeout"
    POISON = "poison"
    DEADLINE = "deadline"
    WORKER_LOST = "worker_lost"


class Reason(StrEnum):
    """Why a lease was taken away."""

    LEASE_EXPIRED = "lease_expired"
    DEADLINE = "deadline"
    WORKER_LOST = "worker_lost"


class OnExpiry(StrEnum):
    """What a stage asks of the reaper when a lease runs out."""

    REQUEUE = "requeue"
    FAIL = "fail"


class AttemptsCounted(StrEnum):
    """When a table without leases counts an attempt."""

    CLAIM = "claim"
    REAP = "reap"


class Dedupe(StrEnum):
    """What becomes of a new job whose key a queued or processing job has."""

    SKIP = "skip"
    REPLACE = "replace"


class Trigger(StrEnum):
    """Who asked for a pass."""

    BEAT = "beat"
    COMMAND = "command"
    ADMIN = "admin"
    SQL = "sql"
    TICK = "tick"
    PYTHON = "python"
