"""A job's attempts, one after another, as its events tell them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import Q, TextField
from django.db.models.functions import Cast

from jobreaper.db import reading_any_time
from jobreaper.explaining.facts import JobFacts
from jobreaper.models import JobEvent
from jobreaper.states import ENDED_RUNS, EventType, Status
from jobreaper.tables import JobTable

MOST_EVENTS: Final = 200

# The events that end an attempt, other than a worker's own.
_TAKEN: Final = (
    EventType.REAPER_REQUEUED,
    EventType.REAPER_FAILED_TIMEOUT,
    EventType.REAPER_FAILED_POISON,
    EventType.REAPER_FAILED_DEADLINE,
    EventType.REAPER_FAILED_STALLED,
    EventType.JOB_WORKER_LOST,
)
_BY_HAND: Final = (
    EventType.ADMIN_REQUEUED,
    EventType.ADMIN_FAILED,
    EventType.ADMIN_CANCELLED,
    EventType.JOB_CANCELLED,
)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt: who held it, from when to when, and how it ended (``None``: it runs).

    ``waited_from`` is when it was due, ``silent_from`` the last sign of life of a worker that was
    lost or is late, ``expired_at`` the end of its lease. What is not known is ``None``.
    """

    number: int | None
    worker: str | None
    waited_from: datetime | None
    began_at: datetime | None
    silent_from: datetime | None
    expired_at: datetime | None
    ended_at: datetime | None
    outcome: EventType | None
    fail_code: str | None = None
    fail_reason: str | None = None

    @property
    def was_lost(self) -> bool:
        """Whether its worker was lost."""
        return self.outcome in _TAKEN

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in vars(self).items()
        }


def attempts_of(table: JobTable, job: JobFacts) -> list[Attempt]:
    """Return the attempts of a job that its events still tell of, and the one that runs."""
    with reading_any_time(table.connection()):
        found = JobEvent.objects.using(table.alias).filter(
            Q(table=table.name) | Q(table=None), job_id=job.key
        )
        # Not every JSON that PostgreSQL stores can be read.
        as_text = found.defer("data").annotate(text=Cast("data", TextField()))
        events = list(as_text.order_by("-id")[:MOST_EVENTS])[::-1]
    for event in events:
        event.data = _json(event.text)
    return attempts_in(events, job)


def attempts_in(events: Iterable[JobEvent], job: JobFacts) -> list[Attempt]:
    """Return the attempts that these events of a job tell of, oldest first."""
    found: list[Attempt] = []
    due_at: datetime | None = None
    for event in events:
        details = event.details
        if _ends_an_attempt(event):
            found.append(_ended(event, details, due_at))
        due_at = time_in(details.get("next_earliest_run_at")) or event.at
    if job.status == Status.PROCESSING:
        # A late job may be taken back, with the lease's end as its own.
        found.append(_running(job, due_at))
    return found


def _ends_an_attempt(event: JobEvent) -> bool:
    if event.type in (*ENDED_RUNS, EventType.JOB_RELEASED, *_TAKEN):
        return True
    return event.type in _BY_HAND and event.details.get("from_status") == Status.PROCESSING


def _ended(event: JobEvent, details: Mapping[str, Any], due_at: datetime | None) -> Attempt:
    duration = _milliseconds(details.get("duration_ms"))
    began_at = time_in(details.get("claimed_at")) or (event.at - duration if duration else None)
    waited = _milliseconds(details.get("queue_wait_ms"))
    waited_from = began_at - waited if began_at is not None and waited is not None else due_at
    number = details.get("attempt")
    return Attempt(
        number=number if isinstance(number, int) else None,
        worker=_text(details.get("locked_by")),
        waited_from=waited_from,
        began_at=began_at,
        silent_from=time_in(details.get("last_heartbeat_at")) if event.type in _TAKEN else None,
        expired_at=time_in(details.get("lease_expires_at")),
        ended_at=event.at,
        outcome=EventType(event.type),
        fail_code=_text(details.get("fail_code") or details.get("reason")),
        fail_reason=_text(details.get("fail_reason") or details.get("how")),
    )


def _running(job: JobFacts, due_at: datetime | None) -> Attempt:
    is_over = job.lease_expires_at is not None and job.lease_expires_at < job.seen_at
    return Attempt(
        number=job.attempt_count,
        worker=job.locked_by,
        waited_from=due_at,
        began_at=job.claimed_at,
        silent_from=job.last_seen_at if is_over or job.is_late else None,
        expired_at=job.lease_expires_at if is_over else None,
        ended_at=None,
        outcome=None,
    )


def _json(text: str) -> Any:
    """Return what JSON says, as far as Python can read it."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


def time_in(value: object) -> datetime | None:
    """Return the (aware) time that an event's detail is, if it is one."""
    with suppress(ValueError, TypeError):
        at = datetime.fromisoformat(str(value))
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    return None


def _milliseconds(value: object) -> timedelta | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            return timedelta(milliseconds=value)
    return None


def _text(value: object) -> str | None:
    return None if value in (None, "") else str(value)
