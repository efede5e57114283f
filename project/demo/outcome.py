"""The result of the demo, counted in the database."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from django.db.models import QuerySet

from jobreaper.models import JobEvent
from jobreaper.states import TERMINAL, EventType, Status
from project.demo.screen import Screen
from project.media.models import AsrJob, Job, MediaJob

TABLES: tuple[type[MediaJob], ...] = (Job, AsrJob)


# The watcher of dead workers is faster than the reaper, unless it is the one that is frozen.
TAKEN_BACK = (EventType.JOB_WORKER_LOST, EventType.REAPER_REQUEUED)


class Expected(NamedTuple):
    """An event about `job` and the worker with that id which must exist in the end, of one of the
    kinds.
    """

    kinds: tuple[EventType, ...]
    job: MediaJob
    worker_id: str


def missing_events(expected: Iterable[Expected]) -> list[str]:
    """Return the missing events, in words."""
    return [
        f"no event {' or '.join(kinds)} of {job} and {worker_id}"
        for kinds, job, worker_id in expected
        if not _events(kinds, job).filter(data__details__locked_by=worker_id).exists()
    ]


def sum_up(screen: Screen, expected: Sequence[Expected]) -> list[str]:
    """Print the final table and return what is wrong, in words."""
    rows = []
    problems = []
    for model in TABLES:
        jobs = list(model.objects.order_by("pk"))
        statuses = [job.status for job in jobs]
        lost = [job for job in jobs if _is_lost(job)]
        events = JobEvent.objects.filter(table=model._meta.db_table)
        rows.append(
            {
                "jobs": len(jobs),
                "succeeded": statuses.count(Status.SUCCESS),
                "requeued": events.filter(type__in=TAKEN_BACK).count(),
                "failed": statuses.count(Status.FAILED),
                "lost": len(lost),
                "stale writes rejected": events.filter(
                    type=EventType.JOB_STALE_WRITE_REJECTED
                ).count(),
            }
        )
        problems += [f"{job} is lost: {job.status}, {job.payload}" for job in lost]
        for job in jobs:
            # All these jobs can succeed, so a failed one is an error of the demo.
            if job.status == Status.FAILED:
                problems.append(f"{job} failed: {job.fail_code}: {job.fail_reason}")
            if (times := _events((EventType.JOB_FINISHED,), job).count()) > 1:
                problems.append(f"{job} was finished {times} times")
    rows.append({name: sum(row[name] for row in rows) for name in rows[0]})
    screen.table([*(model._meta.db_table for model in TABLES), "total"], rows)
    return problems + missing_events(expected)


def _events(kinds: tuple[EventType, ...], job: MediaJob) -> QuerySet[JobEvent]:
    found: QuerySet[JobEvent] = JobEvent.objects.filter(
        type__in=kinds, table=job._meta.db_table, job_id=str(job.pk)
    )
    return found


def _is_lost(job: MediaJob) -> bool:
    if job.status == Status.SUCCESS:
        output = Path(job.payload.get("output", ""))
        return not (output.is_file() and output.stat().st_size)
    return job.status not in TERMINAL
