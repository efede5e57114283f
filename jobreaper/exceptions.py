"""Every exception this package raises on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class JobreaperError(Exception):
    """Base of all exceptions below."""


class ConfigurationError(JobreaperError):
    """A setting is wrong. The message lists every problem found, one a line."""


class UnsupportedDatabase(JobreaperError):
    """A job table lives in a database that is not PostgreSQL."""


class UnknownTable(JobreaperError, LookupError):
    """A table name that no registered job table has."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = sorted(known)
        super().__init__(
            f"unknown job table {name!r}; known tables: {', '.join(self.known) or 'none'}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.known)


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
    """``hold()`` could not take the lease: the job is not queued, not due, locked or not there."""


class BadPayload(JobreaperError, ValueError):
    """A payload is not JSON, or cannot be stored. The message names the place."""


class LeaseClosed(JobreaperError):
    """A verb was called on a lease that this process has already finished, failed or released."""


class LeaseLost(JobreaperError):
    """The lease belongs to nobody or to someone else by now: nothing was written.

    ``status`` and ``epoch`` are the row's at that moment, both ``None`` where the row is gone or
    the loss was concluded from this process's own clock.
    """

    def __init__(
        self,
        message: str = "the lease was lost",
        *,
        table: str | None = None,
        pk: object = None,
        status: str | None = None,
        epoch: int | None = None,
    ) -> None:
        super().__init__(message)
        self.table = table
        self.pk = pk
        self.status = status
        self.epoch = epoch


class OpenTransaction(JobreaperError):
    """A job's function returned and had left a transaction open, which was rolled back."""
