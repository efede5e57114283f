"""Retention: deletes finished jobs, and records that are old enough.

It deletes batch by batch, each in its own transaction. So memory use stays constant, locks are
short, and a prune that is killed keeps what it has done. Only the ready-made job table is pruned,
and tables with ``register(model, retention=True)``: the package must not delete your rows unasked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from django.db import DatabaseError, Error, models
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import SQL, Composable, Identifier

from jobreaper import conf, sql, values
from jobreaper.control.references import nothing_refers
from jobreaper.db import (
    connection_for,
    fetch_within,
    in_words,
    may_be_a_rows_fault,
    one_outage,
    retrying,
)
from jobreaper.exceptions import ConfigurationError
from jobreaper.models import Job, JobEvent, JobState, ReaperPass, Worker
from jobreaper.states import TERMINAL, Status
from jobreaper.tables import JobTable, by_alias, statements

logger = logging.getLogger("jobreaper.retention")

DEFAULT_BATCH_SIZE: Final = 1000

# The next prune tries again if a migration has locked a table.
LOCK_TIMEOUT_SEC: Final = 2.0
# A batch takes milliseconds. Without an index on finished_at, it reads the table.
STATEMENT_TIMEOUT_SEC: Final = 60.0

# Rows that the database does not let go, before a prune of their table gives up.
MOST_KEPT: Final = 100


@dataclass
class PruneResult:
    """The number of rows that were deleted, by table, or in a dry run, would be deleted."""

    deleted: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    is_complete: bool = True
    dry_run: bool = False


class Statements(NamedTuple):
    """The statement that deletes a batch, and the one that counts what would be deleted."""

    deleting: str
    counting: str


class _Target(NamedTuple):
    name: str
    render: Callable[[], Statements]
    age_sec: float


@one_outage()
def prune(
    *,
    dry_run: bool = False,
    batch_size: int = DEFAULT_BATCH_SIZE,
    budget_sec: float | None = None,
    database: str | None = None,
    progress: Callable[[str, int], object] | None = None,
) -> PruneResult:
    """Delete rows that are older than ``RETENTION``, and return how many.

    Args:
        dry_run: count, and delete nothing.
        batch_size: rows per statement.
        budget_sec: stop after these seconds and leave the rest to the next prune.
        database: the alias of the tables, instead of those that Django's routers choose.
        progress: called after each batch with the table's name and the rows deleted so far.

    Database errors are not raised: the result contains them, and the next prune continues.

    Raises:
        ValueError: ``batch_size`` is less than 1 or too large.
        ConfigurationError: a setting is invalid.
    """
    values.batch_size(batch_size)
    ends_at = None if budget_sec is None else time.monotonic() + budget_sec
    result = PruneResult(dry_run=dry_run)
    for alias, here in by_alias(database=database).items():
        connection = connection_for(alias)
        targets = [*_jobs(connection, here), *_records()]
        for target in targets:
            try:
                _prune(connection, target, result, batch_size, ends_at, progress)
            except (Error, ConfigurationError) as error:
                said = f"{target.name}: {in_words(error)}"
                # A problem with a table affects each of its statuses.
                if said not in result.errors:
                    result.errors.append(said)
                    logger.warning("pruning %s failed: %s", target.name, in_words(error))
    return result


def _jobs(connection: BaseDatabaseWrapper, tables: list[JobTable]) -> Iterator[_Target]:
    ages = conf.settings().retention_sec
    for table in tables:
        if table.model is Job or table.retention:
            for status in sorted(TERMINAL):
                age_sec = ages[status]
                if age_sec is not None:
                    render = partial(job_statements, connection, table, status)
                    yield _Target(table.name, render, age_sec)


def _records() -> Iterator[_Target]:
    ages = conf.settings().retention_sec
    records: tuple[tuple[type[models.Model], Composable, str], ...] = (
        (JobEvent, Identifier("at"), "events"),
        (ReaperPass, Identifier("started_at"), "passes"),
        # One that is watched has no such moment, however long nobody has heard of it.
        (JobState, Identifier("saved_at"), "states"),
        (Worker, sql.compose("fragments/worker_ended", {}), "workers"),
    )
    for model, moment, key in records:
        age_sec = ages[key]
        if age_sec is not None:
            render = partial(record_statements, model, moment)
            yield _Target(model._meta.db_table, render, age_sec)


def _prune(
    connection: BaseDatabaseWrapper,
    target: _Target,
    result: PruneResult,
    batch_size: int,
    ends_at: float | None,
    progress: Callable[[str, int], object] | None,
) -> None:
    result.deleted.setdefault(target.name, 0)
    own = retrying(connection, lambda _: target.render())
    statement = own.counting if result.dry_run else own.deleting
    kept: list[str] = []
    size = batch_size
    while True:
        if ends_at is not None and time.monotonic() >= ends_at:
            result.is_complete = False
            break
        try:
            count = _send(connection, statement, target, size, kept=len(kept))
        except DatabaseError as error:
            if len(kept) >= MOST_KEPT or not may_be_a_rows_fault(connection, error):
                raise
            if size > 1:
                # If the table refuses even this, the reason is the table itself.
                _send(connection, statement, target, 0, kept=0)
                size //= 2
            else:
                kept.append(in_words(error))
            continue
        result.deleted[target.name] += count
        if progress is not None:
            progress(target.name, result.deleted[target.name])
        if result.dry_run or count < size:
            break
        size = min(2 * size, batch_size)
    if kept:
        rows = "1 row" if len(kept) == 1 else f"{len(kept):,} rows"
        said = f"{target.name}: {rows} could not be deleted: {kept[0]}"
        result.errors.append(said)
        logger.warning("%s", said)


def _send(
    connection: BaseDatabaseWrapper, statement: str, target: _Target, size: int, *, kept: int
) -> int:
    """Delete a batch beyond the rows that have to be kept, and return how many were deleted."""
    params = {"age_sec": target.age_sec, "batch": size, "kept": kept}
    [(count,)] = retrying(
        connection,
        lambda _: fetch_within(
            connection,
            statement,
            params,
            lock_timeout_sec=LOCK_TIMEOUT_SEC,
            statement_timeout_sec=STATEMENT_TIMEOUT_SEC,
        ),
    )
    return int(count)


def job_statements(connection: BaseDatabaseWrapper, table: JobTable, status: Status) -> Statements:
    """Return the statements for the jobs of a table that have ended in ``status``.

    Raises:
        ConfigurationError: rows in another database may refer to its jobs.
    """
    parts = {
        **statements.leased_parts(table),
        "has_ended": statements.has_status(table, status),
        "is_unreferenced": nothing_refers(connection, table),
    }
    return _rendered("prune_jobs", parts)


def record_statements(model: type[models.Model], moment: Composable) -> Statements:
    """Return the statements for a table of records whose age counts from ``moment``."""
    parts = {"records": Identifier(model._meta.db_table), "moment": moment}
    return _rendered("prune_records", parts)


def _rendered(name: str, parts: Mapping[str, Composable]) -> Statements:
    parts = {**parts, "all_written": statements.all_written("deleted", of=SQL("old"))}
    return Statements(*(sql.render(f"statements/{name}{kind}", parts) for kind in ("", "_dry_run")))
