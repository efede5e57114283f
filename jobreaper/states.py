"""The only vocabulary: statuses, the transitions between them, event types and reasons.

SQL statements, models, admin and logs take their words from here, so each word is written once.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Status(StrEnum):
    """The status of a job."""

    QUEUED = "queued"
    PROCESSING = "processing"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({Status.SUCCESS, Status.FAILED, Status.CANCELLED})

# Every transition that a verb of this package may make. A success is final: requeueing it would
# repeat its effects.
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
    """The state of a processing job's lease, by the database's clock."""

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
    REAPER_FAILED_STALLED = "reaper:failed(stalled)"
    JOB_ENQUEUED = "job:enqueued"
    JOB_CARRIED_OVER = "job:carried_over"
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
    ADMIN_RUN_NOW = "admin:run_now"


# The queue of a job that names none, and of every job in a table without queues.
DEFAULT_QUEUE: Final = "default"

# The pause of a queue has its name behind this, since a stage may have the same name.
PAUSED_QUEUE_PREFIX: Final = "queue:"

# Events that end a run whose worker was not lost, for metering.
ENDED_RUNS: Final = (EventType.JOB_FINISHED, EventType.JOB_RETRIED, EventType.JOB_FAILED)
FAILED_RUNS: Final = (EventType.JOB_RETRIED, EventType.JOB_FAILED)


class Counted(StrEnum):
    """``name`` of a ``Total``. ``docs/metrics.md`` says which events or passes each one counts."""

    REQUEUES = "requeues"
    FAILURES = "failures"
    LOST_AND_REQUEUED = "lost_and_requeued"
    LOST_AND_FAILED = "lost_and_failed"
    # Jobs taken back, each with its reason behind this.
    TAKEN_BACK = "taken_back:"
    STALE_WRITES = "stale_writes"
    SCANS = "scans"
    CLEAN_SCANS = "clean_scans"
    HELD_PASSES = "held_passes"
    COMMON_SILENCES = "common_silences"


class FailCode(StrEnum):
    """``fail_code`` values the reaper writes. Workers may write any other text."""

    TIMEOUT = "timeout"
    POISON = "poison"
    DEADLINE = "deadline"
    STALLED = "stalled"
    WORKER_LOST = "worker_lost"


class Reason(StrEnum):
    """Why a lease was taken away."""

    LEASE_EXPIRED = "lease_expired"
    DEADLINE = "deadline"
    # Its worker sent heartbeats and reported no progress for its stage's stall_after.
    STALLED = "stalled"
    WORKER_LOST = "worker_lost"
    # It had been told to stop, and was killed before it could give its jobs back.
    WORKER_STOPPED = "worker_stopped"


class Verb(StrEnum):
    """What could not be done to a row that cannot be written."""

    REAP = "reap"
    CLAIM = "claim"


class Why(StrEnum):
    """``code`` of a reason that ``explain()`` gives: why a job waits, stands still or has ended."""

    NOT_DUE = "not_due"
    PAUSED = "paused"
    NO_HANDLER = "no_handler"
    STAGE_FULL = "stage_full"
    LOCKED = "locked"
    REFUSED = "refused"
    NO_WORKER = "no_worker"
    SENT = "sent"
    NOT_SENT = "not_sent"
    IN_LINE = "in_line"
    RUNNING = "running"
    SILENT = "silent"
    EXPIRED = "expired"
    STALLED = "stalled"
    PROGRESS = "progress"
    NO_LEASE = "no_lease"
    HELD = "held"
    NO_REAPER = "no_reaper"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN_STATUS = "unknown_status"


class OnExpiry(StrEnum):
    """What the reaper does when a lease of the stage runs out."""

    REQUEUE = "requeue"
    FAIL = "fail"


class AttemptsCounted(StrEnum):
    """When a table without leases counts an attempt."""

    CLAIM = "claim"
    REAP = "reap"


class Dedupe(StrEnum):
    """What happens to a new job if a queued or processing job has its key."""

    SKIP = "skip"
    REPLACE = "replace"


class CatchUp(StrEnum):
    """What a schedule does about times that passed while nobody looked."""

    LAST = "last"
    ALL = "all"
    NONE = "none"


class WorkerKind(StrEnum):
    """What a worker's process is."""

    WORK = "work"
    CELERY = "celery"
    HOLD = "hold"
    FOREIGN = "foreign"


class WorkerState(StrEnum):
    """How a worker stands, by the database's clock and its locks."""

    HERE = "here"
    SILENT = "silent"
    GONE = "gone"


class Trigger(StrEnum):
    """Who asked for a pass."""

    BEAT = "beat"
    COMMAND = "command"
    ADMIN = "admin"
    SQL = "sql"
    TICK = "tick"
    WORK = "work"
    PYTHON = "python"
