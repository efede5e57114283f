"""Tasks as handlers of ``manage.py work``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import iscoroutinefunction
from typing import Any, Final
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.db import models
from django.utils import timezone

from jobreaper import signals
from jobreaper.backend import declared
from jobreaper.backend.compat import (
    PACKAGE,
    Task,
    TaskContext,
    TaskResultStatus,
    as_plain_json,
    task_backends,
    task_finished,
    task_started,
)
from jobreaper.backend.results import error_of, events_of, result_of, task_at, task_of
from jobreaper.exceptions import BadResult
from jobreaper.protocol.holding import holding_of
from jobreaper.protocol.lease import Lease
from jobreaper.protocol.outcome import check_result
from jobreaper.queue import handlers
from jobreaper.queue.handlers import Handler
from jobreaper.states import EventType
from jobreaper.tables import table_of

logger = logging.getLogger(__name__)

# The results of the tasks that run in this process, for the signals at their ends.
_running: Final[WeakKeyDictionary[Lease, Any]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(TaskContext):
    """What a task with ``takes_context`` gets: besides what it gets from every backend, the lease
    of its job.
    """

    lease: Lease

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report how far the task is, as ``Lease.progress()`` does."""
        self.lease.progress(done, total, note)


def is_of_task(job: Any) -> bool:
    """Return whether a job was made of a task."""
    payload = job.payload
    return isinstance(payload, dict) and {"args", "kwargs", "backend"} <= payload.keys()


class TaskSource:
    """The tasks of this backend, by path. Those of modules that nothing has imported yet are found
    when a job is there for them.
    """

    def handlers(self, model: type[models.Model]) -> Mapping[str, Handler]:
        """Return handlers by type: the path of a task."""
        if not _is_kept_in(model):
            return {}
        return {path: handler_of(task) for path, task in declared.tasks.items()}

    def stages(self, model: type[models.Model]) -> Collection[str | None]:
        """Return no stage: tasks run in ``manage.py work``."""
        return ()

    def find(self, type: str, model: type[models.Model]) -> Handler | None:
        """Return the handler of a task that is not known yet, if there is one at this path."""
        if "." not in type or not _is_kept_in(model):
            return None
        task = task_at(type)
        return None if task is None else handler_of(task)

    def can_find(self) -> bool:
        """Return whether tasks run here at all."""
        return any(map(_is_backend, _backends()))


source: Final = TaskSource()


def connect() -> None:
    """Register the source and the receivers; called once, at start-up."""
    handlers.add_source(source)
    for signal, receiver in (
        (signals.job_finished, _finished),
        (signals.jobs_finished, _finished_many),
        (signals.job_failed, _failed),
    ):
        uid = signals.OwnReceiver(f"backend.{receiver.__name__}")
        signal.connect(receiver, dispatch_uid=uid)


def _backends() -> list[Any]:
    """Return the backends of the settings, without those that cannot be loaded: the others' tasks
    run all the same.
    """
    found = []
    for alias in task_backends:
        try:
            found.append(task_backends[alias])
        # Whatever somebody else's backend raises. Django's check says so too.
        except Exception as error:
            _warn_once(alias, f"{error}")
    return found


@cache
def _warn_once(alias: str, error: str) -> None:
    logger.warning("the backend %r of %s cannot be loaded: %s", alias, PACKAGE, error)


def _is_backend(backend: object) -> bool:
    from jobreaper.backend.backend import JobreaperBackend

    return isinstance(backend, JobreaperBackend)


def _is_kept_in(model: type[models.Model]) -> bool:
    """Return whether a backend of ours keeps jobs in this table. They may be of any task, since a
    task can be enqueued with another backend than its own.
    """
    return any(_is_backend(backend) and backend.model is model for backend in _backends())


def handler_of(task: Task[..., Any]) -> Handler:
    """Return a task as a handler."""
    return _async_handler(task) if iscoroutinefunction(task.func) else _plain_handler(task)


def _plain_handler(task: Task[..., Any]) -> Handler:
    def run(job: Any, lease: Lease) -> Any:
        result = _begin(job, lease, task)
        task_started.send(_sender(result), task_result=result)
        returned = task.func(*_arguments(task, result, lease), **result.kwargs)
        return _checked(lease, result, returned)

    return run


def _async_handler(task: Task[..., Any]) -> Handler:
    async def run(job: Any, lease: Lease) -> Any:
        result = await sync_to_async(_begin)(job, lease, task)
        await task_started.asend(_sender(result), task_result=result)
        returned = await task.func(*_arguments(task, result, lease), **result.kwargs)
        return await sync_to_async(_checked)(lease, result, returned)

    return run


def _begin(job: Any, lease: Lease, task: Task[..., Any]) -> Any:
    alias = job.payload.get("backend", task.backend)
    as_enqueued = task_of(job, alias, task.module_path, type(task))
    # Without an earlier attempt, there is nothing to read.
    events = events_of(table_of(type(job)), job) if job.attempt_count > 1 or job.reap_count else []
    _running[lease] = result = result_of(job, as_enqueued, alias, events)
    return result


def _arguments(task: Task[..., Any], result: Any, lease: Lease) -> list[Any]:
    context = [JobContext(task_result=result, lease=lease)] if task.takes_context else []
    return [*context, *result.args]


def _checked(lease: Lease, result: Any, returned: Any) -> Any:
    """Return what a task has returned as JSON. If it is not JSON, the task fails for good, as its
    next attempt would: with ``TypeError``, as with other backends.
    """
    if lease.closed:
        return None
    has_result = holding_of(lease).table.has_result
    try:
        plain = as_plain_json(returned)
        check_result(plain)
    except (TypeError, ValueError, BadResult) as error:
        lease.fail(error, retry=False)
        return None
    object.__setattr__(result, "_return_value", plain)
    return plain if has_result else None


def _sender(result: Any) -> type:
    return type(result.task.get_backend())


def _finished(lease: Lease, **_: Any) -> None:
    _end(lease, lambda result: TaskResultStatus.SUCCESSFUL)


def _finished_many(leases: Any, **_: Any) -> None:
    for lease in leases if _running else ():
        _finished(lease)


def _failed(lease: Lease, details: Any, **_: Any) -> None:
    def fail(result: Any) -> TaskResultStatus:
        if error := error_of(EventType.JOB_FAILED, details):
            result.errors.append(error)
        return TaskResultStatus.FAILED

    _end(lease, fail, holding_of(lease).raised)


def _end(
    lease: Lease,
    outcome: Callable[[Any], TaskResultStatus],
    error: BaseException | None = None,
) -> None:
    result = forget(lease)
    if result is not None:
        object.__setattr__(result, "status", outcome(result))
        object.__setattr__(result, "finished_at", timezone.now())
        announce_end(result, error)


def forget(lease: Lease) -> Any:
    """Return the result of a task that runs in this process and whose end has not been announced,
    and forget it: the caller announces it. ``None`` if there is none.
    """
    return _running.pop(lease, None)


def announce_end(result: Any, error: BaseException | None) -> None:
    """Send ``task_finished``. As Django's backends do, it is sent while the task's exception is
    handled: Django's own receiver logs ``sys.exc_info()``.
    """
    if error is None:
        task_finished.send_robust(_sender(result), task_result=result)
        return
    traceback = error.__traceback__
    try:
        raise error
    except BaseException:
        task_finished.send_robust(_sender(result), task_result=result)
    finally:
        error.__traceback__ = traceback
