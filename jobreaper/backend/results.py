"""A job as a ``TaskResult``: its row says how it stands, its events what became of its attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from django.utils.dateparse import parse_datetime
from django.utils.module_loading import import_string

from jobreaper.backend.compat import (
    AnyTaskResult,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskError,
    TaskResultStatus,
)
from jobreaper.exceptions import JobCancelled, JobreaperError, LeaseLost
from jobreaper.models import JobEvent
from jobreaper.states import DEFAULT_QUEUE, EventType, Status
from jobreaper.tables import JobTable, table_of

STATUSES: Final = {
    Status.QUEUED: TaskResultStatus.READY,
    Status.PROCESSING: TaskResultStatus.RUNNING,
    Status.SUCCESS: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
}

# The events that end an attempt, with what is said of an attempt that has raised no exception.
_FAILED: Final = {EventType.JOB_RETRIED, EventType.JOB_FAILED}
_WORKER_LOST: Final = {
    EventType.REAPER_REQUEUED,
    EventType.REAPER_FAILED_TIMEOUT,
    EventType.REAPER_FAILED_POISON,
    EventType.REAPER_FAILED_DEADLINE,
    EventType.REAPER_FAILED_STALLED,
    EventType.JOB_WORKER_LOST,
}
_BY_HAND: Final = {
    EventType.ADMIN_FAILED,
    EventType.ADMIN_CANCELLED,
    EventType.JOB_CANCELLED,
}
# What another queue had done with a job before it was carried over.
_BEFORE: Final = EventType.JOB_CARRIED_OVER
ENDS: Final = [*_FAILED, *_WORKER_LOST, *_BY_HAND, _BEFORE, EventType.JOB_FINISHED]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(AnyTaskResult):
    """A result that also says how far the job is: what it reported last (``done``, and perhaps
    ``total`` and ``note``), and when that was new.
    """

    progress: dict[str, Any] | None = None
    progress_at: datetime | None = None

    def refresh(self) -> None:
        """Read the job once more."""
        self._become(self.task.get_backend().get_result(self.id))

    async def arefresh(self) -> None:
        """Read the job once more."""
        self._become(await self.task.get_backend().aget_result(self.id))

    def _become(self, other: Any) -> None:
        for own in fields(self):
            if own.name != "task":
                object.__setattr__(self, own.name, getattr(other, own.name))


def events_of(table: JobTable, job: Any) -> Sequence[JobEvent]:
    """Return the events that ended attempts of a job, oldest first."""
    events = JobEvent.objects.using(table.alias)
    return list(events.filter(job_id=str(job.pk), table=table.name, type__in=ENDS).order_by("id"))


def result_of(job: Any, task: Task[..., Any], alias: str, events: Iterable[JobEvent]) -> Any:
    """Return a job as a result of ``task``. ``alias`` is its backend's."""
    events = list(events)
    attempts = [event for event in events if event.details.get("locked_by")]
    worker_ids = [str(event.details["locked_by"]) for event in attempts]
    begun = [at for event in attempts if (at := _time(event.details.get("claimed_at")))]
    if job.status == Status.PROCESSING:
        worker_ids.append(job.locked_by)
        begun.append(job.claimed_at)
    elif attempts and not begun:
        # The workers of all attempts were lost.
        begun.append(job.last_heartbeat_at)
    tracks = table_of(type(job)).tracks_progress
    result = JobResult(
        task=task,
        id=str(job.pk),
        status=STATUSES[Status(job.status)],
        enqueued_at=getattr(job, "created_at", None),
        started_at=begun[0] if begun else None,
        finished_at=job.finished_at,
        last_attempted_at=begun[-1] if begun else None,
        args=job.payload["args"],
        kwargs=job.payload["kwargs"],
        backend=alias,
        errors=[error for event in events if (error := error_of(event.type, event.details))],
        worker_ids=worker_ids,
        progress=job.progress if tracks else None,
        progress_at=job.progress_at if tracks else None,
    )
    object.__setattr__(result, "_return_value", getattr(job, "result", None))
    return result


def error_of(type: str | None, details: dict[str, Any]) -> TaskError | None:
    """Return what an event says about a failure, or ``None`` if it is not about one."""
    if type in {*_FAILED, _BEFORE} and details.get("exception"):
        return TaskError(
            exception_class_path=details["exception"], traceback=details["traceback"] or ""
        )
    if type in _FAILED:
        said = f"{details.get('fail_code')}: {details.get('fail_reason') or ''}"
        return _error(JobreaperError, said)
    if type in _WORKER_LOST:
        return _error(LeaseLost, f"{details.get('locked_by')} was lost: {details.get('reason')}")
    if type in _BY_HAND:
        return _error(JobCancelled, f"by {details.get('by')}: {details.get('reason') or type}")
    return None


def _error(kind: type[Exception], said: str) -> TaskError:
    path = f"{kind.__module__}.{kind.__qualname__}"
    return TaskError(exception_class_path=path, traceback=f"{path}: {said}\n")


def _time(value: object) -> datetime | None:
    return parse_datetime(value) if isinstance(value, str) else None


# The task of a job.


def task_at(path: str) -> Task[..., Any] | None:
    """Return the task at this path, or ``None`` if there is none."""
    # A module's own code may raise anything.
    with suppress(Exception):
        found = import_string(path)
        if isinstance(found, Task):
            return found
    return None


def task_of(job: Any, alias: str, path: str, task_class: Callable[..., Any]) -> Any:
    """Return the task of a job as it was enqueued. If its code is gone, it is a task that raises
    ``ImportError`` when it is called.
    """
    task = task_at(path)
    if task is None:
        return task_class(
            func=_gone(path), backend=alias, priority=0, queue_name=DEFAULT_QUEUE, run_after=None
        )
    given = {
        "priority": getattr(job, "priority", 0),
        "queue_name": getattr(job, "queue", DEFAULT_QUEUE),
        "backend": alias,
        "run_after": _time(job.payload.get("run_after")),
        "max_attempts": job.payload.get("max_attempts"),
    }
    known = {own.name: getattr(task, own.name) for own in fields(task)}
    changes = {name: value for name, value in given.items() if name in known}
    if "max_attempts" not in job.payload:
        changes.pop("max_attempts", None)
    # What was valid when it was enqueued may not be valid now, or its backend be gone.
    with suppress(InvalidTask, InvalidTaskBackend):
        return type(task)(**{**known, **changes})
    return task


def _gone(path: str) -> Callable[..., Any]:
    def gone(*args: Any, **kwargs: Any) -> None:
        raise ImportError(f"there is no task {path}")

    gone.__module__, _, name = path.rpartition(".")
    gone.__name__ = gone.__qualname__ = name
    gone.is_gone = True  # type: ignore[attr-defined]
    return gone
