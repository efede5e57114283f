"""The result of a pass: the jobs that it reaped, table by table, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jobreaper.states import FailCode, Reason
from jobreaper.tables import JobTable
from jobreaper.tables.refused import Refused


class ReapedJob(NamedTuple):
    """One job that was taken from its worker. ``run_again_in_ms`` is set if it was requeued,
    ``fail_code`` if it failed.
    """

    pk: Any
    stage: str | None
    reason: Reason
    fail_code: FailCode | None
    locked_by: str | None
    attempt: int
    epoch: int
    overdue_ms: int | None
    run_again_in_ms: int | None


def jobs_of(table: JobTable, rows: Iterable[tuple[Any, ...]]) -> list[ReapedJob]:
    """Return the jobs of a statement's rows, with the keys that Python has."""
    # As almost always: a pass of thousands has as many keys.
    if not table.converts_keys:
        return list(map(ReapedJob._make, rows))
    end = len(ReapedJob._fields)
    return [ReapedJob(table.read_pk(row[0], *row[end:]), *row[1:end]) for row in rows]


@dataclass
class TableResult:
    """The result for one table. ``errors`` says what was left undone and why. ``refused`` contains
    the first of the rows that cannot be written and that later passes try again.
    """

    requeued: list[Any] = field(default_factory=list)
    failed: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    refused: Refused = field(default_factory=Refused)
    duration_ms: float = 0.0

    def take(self, jobs: Iterable[ReapedJob]) -> None:
        """Add the keys of jobs that were reaped."""
        for job in jobs:
            (self.requeued if job.fail_code is None else self.failed).append(job.pk)


@dataclass
class PassResult:
    """The result of one pass, table by table."""

    tables: dict[str, TableResult] = field(default_factory=dict)
    held_reason: str | None = None
    errors: list[str] = field(default_factory=list)
    duration_ms: float = 0.0
    dry_run: bool = False

    @property
    def held(self) -> bool:
        """Whether the pass was held, from the start or later."""
        return self.held_reason is not None

    @property
    def requeued_ids(self) -> dict[str, list[Any]]:
        """Keys of the jobs that went back to the queue, by table."""
        return {name: table.requeued for name, table in self.tables.items()}

    @property
    def failed_ids(self) -> dict[str, list[Any]]:
        """Keys of the jobs that failed, by table."""
        return {name: table.failed for name, table in self.tables.items()}

    @property
    def requeued(self) -> int:
        """The number of jobs that went back to the queue."""
        return sum(len(table.requeued) for table in self.tables.values())

    @property
    def failed(self) -> int:
        """The number of jobs that failed."""
        return sum(len(table.failed) for table in self.tables.values())

    @property
    def refused(self) -> int:
        """The number of rows that cannot be written and are left to later passes."""
        return sum(table.refused.total for table in self.tables.values())

    @property
    def all_errors(self) -> list[str]:
        """What went wrong. A line starts with the table's name if it concerns one table."""
        return self.errors + [
            f"{name}: {error}" for name, table in self.tables.items() for error in table.errors
        ]
