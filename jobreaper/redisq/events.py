"""A ``JobEvent`` for each end of an attempt, and for each job that the reaper moved, if the project
has a PostgreSQL database: the same record, in the same words, as of jobs in tables.

An event is written after the move in Redis, so that a crash between the two loses the event and
never the job. The events of workers are collected and written together by a thread; if the database
is away, the latest ``MOST_WAITING`` wait for it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import DataError, connections, router

from jobreaper.db.text import storable
from jobreaper.identity import local_clock
from jobreaper.models import JobEvent
from jobreaper.redisq import signals
from jobreaper.redisq.dead_letters import DeadLetter
from jobreaper.redisq.job import Job
from jobreaper.redisq.moves import DeadReason, Move
from jobreaper.signals import OwnReceiver
from jobreaper.states import EventType, Reason

MOST_WAITING: Final = 10_000
AT_ONCE: Final = 500

# How long events are collected, in seconds.
COLLECT_SEC: Final = 0.2
# A thread without work closes its connection after so long.
IDLE_SEC: Final = 2.0
# Between tries while the database is away.
AGAIN_SEC: Final = 2.0
# How long a worker that ends waits for its last events.
FLUSH_SEC: Final = 5.0

_DEAD_TYPES: Final = {
    DeadReason.WORKER_LOST: EventType.REAPER_FAILED_TIMEOUT,
    DeadReason.MALFORMED: EventType.REAPER_FAILED_POISON,
}


class Recorder:
    """Collects events and writes them in a thread, which begins with the first one."""

    def __init__(self) -> None:
        self._waiting: deque[JobEvent] = deque(maxlen=MOST_WAITING)
        self._lock = threading.Lock()
        self._flushing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, events: Iterable[JobEvent]) -> None:
        """Have ``events`` written soon."""
        with self._lock:
            self._waiting.extend(events)
            if self._thread is None:
                self._flushing.clear()
                self._thread = threading.Thread(target=self._loop, name="events", daemon=True)
                self._thread.start()

    def flush(self, timeout: float = FLUSH_SEC) -> None:
        """Wait until everything is written, unless the database is away. No connection is open
        then.
        """
        with self._lock:
            thread = self._thread
            self._flushing.set()
        if thread is not None:
            thread.join(timeout)

    def _loop(self) -> None:
        busy_at = local_clock()
        try:
            while True:
                self._flushing.wait(COLLECT_SEC)
                if self._waiting:
                    busy_at = local_clock()
                written = self._write_some()
                with self._lock:
                    nothing = not self._waiting
                    given_up = self._flushing.is_set() and (nothing or not written)
                    if given_up or (nothing and local_clock() - busy_at > IDLE_SEC):
                        self._thread = None
                        return
                if not written:
                    self._flushing.wait(AGAIN_SEC)
        finally:
            connections.close_all()

    def _write_some(self) -> bool:
        batch = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
        if not batch or write(batch):
            return True
        self._waiting.extendleft(reversed(batch))
        return False


recorder: Final = Recorder()


def connect() -> None:
    """Subscribe to the signals of the Redis queue; called once, at start-up."""
    for signal, receiver in (
        (signals.job_completed, _completed),
        (signals.job_retried, _retried),
        (signals.job_dead_lettered, _dead_lettered),
        (signals.job_released, _released),
        (signals.stale_completion, _rejected),
        (signals.job_moved, _moved),
        (signals.dead_letter_handled, _handled_by_hand),
        (signals.worker_stopped, _stopped),
    ):
        signal.connect(receiver, dispatch_uid=OwnReceiver("redisq.events"))


def write(events: Sequence[JobEvent]) -> bool:
    """Write ``events`` at once. Returns ``False`` if the database cannot be used now."""
    alias = router.db_for_write(JobEvent)
    manager = JobEvent.objects.using(alias)
    try:
        manager.bulk_create(events)
    except DataError:
        # A database of another encoding cannot hold the text of some job. The others count.
        for event in events:
            with suppress(DataError):
                manager.bulk_create([event])
    # Whatever it is, jobs go on.
    except Exception:
        connections[alias].close_if_unusable_or_obsolete()
        return False
    return True


def is_possible() -> bool:
    """Return whether the project has a database for events."""
    return connections[router.db_for_write(JobEvent)].vendor == "postgresql"


def event(kind: EventType, job_id: str, queue: str, **details: object) -> JobEvent:
    """Return an event about a job of ``queue``. Details that are ``None`` are left out."""
    told = {
        name: storable(value) if isinstance(value, str) else value
        for name, value in details.items()
        if value is not None
    }
    at = datetime.now(UTC)
    return JobEvent(
        job_id=storable(job_id),
        data={
            "type": kind.value,
            "table": storable(queue),
            "details": told,
            "at": _iso(at),
        },
    )


def _iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _record(kind: EventType, job: Job, queue: str, worker_id: str, **details: object) -> None:
    if is_possible():
        about = {"locked_by": worker_id, "stage": job.priority or None, "attempt": job.retries + 1}
        recorder.add([event(kind, job.id, queue, **about, **details)])


def _completed(worker_id: str, queue: str, job: Job, duration_sec: float, **_: Any) -> None:
    duration_ms = round(duration_sec * 1000)
    _record(EventType.JOB_FINISHED, job, queue, worker_id, duration_ms=duration_ms)


def _retried(
    worker_id: str,
    queue: str,
    job: Job,
    error: BaseException,
    delay_sec: float,
    duration_sec: float,
    **_: Any,
) -> None:
    _record(
        EventType.JOB_RETRIED,
        # The attempt that failed, not the one that is to come.
        replace(job, retries=job.retries - 1),
        queue,
        worker_id,
        duration_ms=round(duration_sec * 1000),
        fail_code=type(error).__name__,
        fail_reason=storable(error),
        next_earliest_run_at=_iso(datetime.now(UTC) + timedelta(seconds=delay_sec)),
    )


def _dead_lettered(
    worker_id: str,
    queue: str | None,
    job: Job | None,
    reason: str,
    detail: str,
    entry: bytes,
    **_: Any,
) -> None:
    if job is None:
        job = unreadable(entry)
    about = {"fail_code": reason, "fail_reason": detail}
    _record(EventType.JOB_FAILED, job, queue or "", worker_id, **about)


def _released(worker_id: str, queue: str, job: Job, **_: Any) -> None:
    _record(EventType.JOB_RELEASED, job, queue, worker_id)


def _rejected(worker_id: str, queue: str, job: Job, verb: str, **_: Any) -> None:
    _record(EventType.JOB_STALE_WRITE_REJECTED, job, queue, worker_id, verb=verb)


def _moved(moves: Sequence[Move], reaper: str, **_: Any) -> None:
    """At once: the process of a reaper may end after its pass."""
    if not is_possible():
        return
    events = [_event_of(move, reaper) for move in moves]
    if not write(events):
        recorder.add(events)


def _event_of(move: Move, reaper: str) -> JobEvent:
    job = move.job or unreadable(move.entry)
    kind = _DEAD_TYPES[DeadReason(move.reason)] if move.reason else EventType.REAPER_REQUEUED
    return event(
        kind,
        job.id,
        move.queue,
        reason=Reason.LEASE_EXPIRED,
        locked_by=move.worker_id,
        stage=job.priority or None,
        attempt=job.retries + 1,
        reaper=reaper,
        fail_code=move.reason or None,
        fail_reason=move.detail or None,
    )


def _handled_by_hand(did: str, letter: DeadLetter, queue: str, by: str, **_: Any) -> None:
    if not is_possible():
        return
    job = letter.job or unreadable(letter.entry)
    kind = EventType.ADMIN_REQUEUED if did == "requeued" else EventType.ADMIN_CANCELLED
    stage, attempt = job.priority or None, job.retries + 1
    written = [event(kind, job.id, queue, by=by, stage=stage, attempt=attempt)]
    if not write(written):
        recorder.add(written)


def unreadable(entry: bytes) -> Job:
    """Return what stands for a malformed entry in the record: the same for the same bytes."""
    return Job(id=f"malformed:{hashlib.sha256(entry).hexdigest()[:16]}", filepath="")


def _stopped(**_: Any) -> None:
    recorder.flush()
