"""All exceptions that this package raises on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class JobreaperError(Exception):
    """The base class of all exceptions below."""


class ConfigurationError(JobreaperError):
    """A setting is invalid. The message lists every problem, one a line."""


class UnsupportedDatabase(JobreaperError):
    """A job table is in a database that is not PostgreSQL."""


class UnknownTable(JobreaperError, LookupError):
    """No registered job table has this name, or a model is not a job table."""

    def __init__(self, name: str, known: Iterable[str], why: str | None = None) -> None:
        self.name = name
        self.known = sorted(known)
        self.why = why
        super().__init__(
            f"unknown job table {name!r}{f' ({why})' if why else ''}; "
            f"known tables: {', '.join(self.known) or 'none'}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.known, self.why)


class NotLeasable(JobreaperError):
    """A worker's verb was called on a table that can only be watched and reclaimed."""

    def __init__(self, table: str, missing: Iterable[str]) -> None:
        self.table = table
        self.missing = tuple(missing)
        why = (
            f"it has no column for {', '.join(self.missing)}"
            if self.missing
            else "its key is composite"
        )
        super().__init__(
            f"jobs of {table} can be reaped but not leased: {why}; see docs/adoption.md"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table, self.missing)


class NotClaimed(JobreaperError):
    """``hold()`` could not claim the job: it is not queued, not due, locked, or does not exist."""


class UnknownSchedule(JobreaperError, LookupError):
    """There is no schedule with this name."""


class BadPayload(JobreaperError, ValueError):
    """A payload is not JSON, or cannot be stored. The message says where."""


class MalformedJob(JobreaperError, ValueError):
    """An entry of a Redis list is not a job. The message says why, without the entry itself."""


class RedisUnreachable(JobreaperError):
    """The Redis of the list queue does not answer, or refuses what it is asked."""


class BadState(JobreaperError, ValueError):
    """What ``Lease.save_state()`` got is not a dict, not JSON, or too large."""


class BadResult(JobreaperError, ValueError):
    """A job's result is not JSON or too large, or its table has no column for it."""


class BadProgress(JobreaperError, ValueError):
    """What ``Lease.progress()`` got is no progress, or the job's table has no columns for it."""


class JobCancelled(JobreaperError):
    """A job was cancelled, or failed by hand: in the errors of a task's result."""


class LeaseClosed(JobreaperError):
    """A verb was called on a lease that this process has already finished, failed or released."""


class LeaseLost(JobreaperError):
    """The lease no longer belongs to this worker, and nothing was written.

    ``status`` and ``epoch`` are the row's values at that moment. Both are ``None`` if the row is
    gone, or if the loss was concluded from this process's own clock.
    """

    usual_message = "the lease was lost"

    def __init__(
        self,
        message: str | None = None,
        *,
        table: str | None = None,
        pk: object = None,
        status: str | None = None,
        epoch: int | None = None,
    ) -> None:
        super().__init__(message or self.usual_message)
        self.table = table
        self.pk = pk
        self.status = status
        self.epoch = epoch


class WorkerStopping(LeaseLost):
    """The worker stops before the job's function has ended, and gives the job back without counting
    the attempt. Until the function ends, the lease still stands.
    """

    usual_message = "the worker stops, and the job is given back"


class OpenTransaction(JobreaperError):
    """A job's function returned with an open transaction, which was rolled back."""
