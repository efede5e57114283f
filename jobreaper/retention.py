"""Retention: finished jobs, events and passes are deleted when they are old enough.

Batch by batch, each in a transaction of its own: memory stays flat, locks are short, and a prune
that is killed has done what it has done. Of job tables only the ready-made one is pruned unless
another asks for it (``register(model, retention=True)``): rows of yours are not ours to delete.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

from django.db import Error, models
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import SQL, Composable, Identifier

from jobreaper import conf, rendering, sql, values
from jobreaper.db import connection_for, fetch_within, in_words, one_outage, retrying
from jobreaper.models import Job, JobEvent, ReaperPass
from jobreaper.states import TERMINAL, Status
from jobreaper.tables import JobTable, job_tables

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE: Final = 1000

# A table locked by a migration is left to the next prune.
LOCK_TIMEOUT_SEC: Final = 2.0
# A batch takes milliseconds; without an index on finished_at it reads the table.
STATEMENT_TIMEOUT_SEC: Final = 60.0


@dataclass
class PruneResult:
    """How many rows were deleted, by table; in a dry run, how many would be."""

    deleted: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    is_complete: bool = True
    dry_run: bool = False


class _Target(NamedTuple):
    name: str
    statement: str
    dry_run_statement: str
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
    """Delete what is older than ``RETENTION`` says, and return how much that was.

    Args:
        dry_run: count, and delete nothing.
        batch_size: rows a statement.
        budget_sec: stop after these seconds and leave the rest to the next prune.
        database: an alias that holds the tables, in place of those Django's routers name.
        progress: called after each batch with the table's name and the rows deleted so far.

    Database errors do not raise: they are in the result, and the next prune goes on.

    Raises:
        ValueError: ``batch_size`` is less than 1, or beyond all bounds.
        ConfigurationError: a setting is wrong.
    """
    values.batch_size(batch_size)
    ends_at = None if budget_sec is None else time.monotonic() + budget_sec
    result = PruneResult(dry_run=dry_run)
    tables = job_tables()
    for alias in [database] if database else sorted({table.alias for table in tables}):
        connection = connection_for(alias)
        here = [table for table in tables if database or table.alias == alias]
        for target in _targets(here):
            try:
                _prune(connection, target, result, batch_size, ends_at, progress)
            except Error as error:
                result.errors.append(f"{target.name}: {in_words(error)}")
                logger.warning("pruning %s failed: %s", target.name, in_words(error))
    return result


def _targets(tables: list[JobTable]) -> Iterator[_Target]:
    ages = conf.settings().retention_sec
    for table in tables:
        if table.model is Job or table.retention:
            for status in sorted(TERMINAL):
                age_sec = ages[status]
                if age_sec is not None:
                    yield _Target(table.name, *_statements(table, status), age_sec)
    records: tuple[tuple[type[models.Model], str, str], ...] = (
        (JobEvent, "at", "events"),
        (ReaperPass, "started_at", "passes"),
    )
    for model, moment, key in records:
        age_sec = ages[key]
        if age_sec is not None:
            parts = {
                "records": Identifier(model._meta.db_table),
                "moment": Identifier(moment),
            }
            yield _Target(
                model._meta.db_table,
                sql.render("statements/prune_records", parts),
                sql.render("statements/prune_records_dry_run", parts),
                age_sec,
            )


def _prune(
    connection: BaseDatabaseWrapper,
    target: _Target,
    result: PruneResult,
    batch_size: int,
    ends_at: float | None,
    progress: Callable[[str, int], object] | None,
) -> None:
    result.deleted.setdefault(target.name, 0)
    statement = target.dry_run_statement if result.dry_run else target.statement
    params = {"age_sec": target.age_sec, "batch": batch_size}
    while True:
        if ends_at is not None and time.monotonic() >= ends_at:
            result.is_complete = False
            return
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
        result.deleted[target.name] += count
        if progress is not None:
            progress(target.name, result.deleted[target.name])
        if result.dry_run or count < batch_size:
            return


@cache
def _statements(table: JobTable, status: Status) -> tuple[str, str]:
    parts = {
        **rendering.leased_parts(table),
        "has_ended": rendering.has_status(table, status),
        "is_unreferenced": _is_unreferenced(table.model),
    }
    return (
        sql.render("statements/prune_jobs", parts),
        sql.render("statements/prune_jobs_dry_run", parts),
    )


def _is_unreferenced(model: type[models.Model]) -> Composable:
    """Return the condition that no row of another table refers to ``job``."""
    conditions: list[Composable] = [SQL("true")]
    for relation in model._meta.get_fields(include_hidden=True):
        if not relation.auto_created or relation.concrete or relation.many_to_many:
            continue
        own: Any = relation
        conditions.append(
            SQL("NOT EXISTS (SELECT FROM {} AS other WHERE other.{} = job.{})").format(
                Identifier(*own.related_model._meta.db_table.strip('"').split('"."')),
                Identifier(own.field.column),
                Identifier(own.target_field.column),
            )
        )
    return SQL(" AND ").join(conditions)
