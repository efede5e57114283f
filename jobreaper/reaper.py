"""The reaper's half: one pass over the job tables.

A pass goes table by table and batch by batch. A batch is one statement in a transaction of its own
with its own timeouts, so any number of reapers may run at once, and one that is killed leaves
nothing behind. What goes wrong in one table, or with one row, is kept to that table or row.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from django.db import DatabaseError, Error, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now

from jobreaper import conf, guard, signals, totals, values
from jobreaper.db import (
    UNMIGRATED_SQLSTATES,
    connection_for,
    fetch_within,
    in_words,
    is_transient,
    on_commit,
    retrying,
    storable,
)
from jobreaper.models import ReaperPass
from jobreaper.states import FailCode, Reason, Trigger
from jobreaper.tables import JobTable, named
from jobreaper.totals import Scan
from jobreaper.worker import worker_id

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE: Final = 1000

# A table locked by a migration is left to the next pass.
LOCK_TIMEOUT_SEC: Final = 0.5
# A batch takes milliseconds; one that takes longer than this has lost its index.
STATEMENT_TIMEOUT_SEC: Final = 30.0
# A dry run looks at everything in one statement.
DRY_RUN_TIMEOUT_SEC: Final = 300.0
# query_canceled: by the timeout above
TABLE_SQLSTATES: Final = UNMIGRATED_SQLSTATES | {"57014"}
# Beyond this many rows that cannot be written it is the table that is at fault.
MOST_BAD_ROWS: Final = 20


class ReapedJob(NamedTuple):
    """One job that was taken from its worker. ``run_again_in_ms`` is set where it was requeued,
    ``fail_code`` where it was failed.
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


@dataclass
class TableResult:
    """What a pass did to one table. ``errors`` holds what was left undone and why."""

    requeued: list[Any] = field(default_factory=list)
    failed: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    duration_ms: float = 0.0


@dataclass
class PassResult:
    """What one pass did, table by table."""

    tables: dict[str, TableResult] = field(default_factory=dict)
    held_reason: str | None = None
    errors: list[str] = field(default_factory=list)
    duration_ms: float = 0.0
    dry_run: bool = False

    @property
    def held(self) -> bool:
        """Whether nothing was reaped, on purpose."""
        return self.held_reason is not None

    @property
    def requeued_ids(self) -> dict[str, list[Any]]:
        """Keys of the jobs that went back to the queue, by table."""
        return {name: table.requeued for name, table in self.tables.items()}

    @property
    def failed_ids(self) -> dict[str, list[Any]]:
        """Keys of the jobs that were failed, by table."""
        return {name: table.failed for name, table in self.tables.items()}

    @property
    def requeued(self) -> int:
        """How many jobs went back to the queue."""
        return sum(len(table.requeued) for table in self.tables.values())

    @property
    def failed(self) -> int:
        """How many jobs were failed."""
        return sum(len(table.failed) for table in self.tables.values())

    @property
    def all_errors(self) -> list[str]:
        """What went wrong, each line with the table's name where it was one table's trouble."""
        return self.errors + [
            f"{name}: {error}" for name, table in self.tables.items() for error in table.errors
        ]


def reap(
    tables: Iterable[str | type[models.Model]] | None = None,
    *,
    dry_run: bool = False,
    batch_size: int | None = None,
    hold: bool = True,
    database: str | None = None,
    trigger: Trigger = Trigger.PYTHON,
    progress: Callable[[str, int], object] | None = None,
) -> PassResult:
    """Give every job whose lease ran out back to the queue, or fail it, and say what was done.

    Args:
        tables: names or models of job tables; all of them by default.
        dry_run: report the verdicts and change nothing.
        batch_size: rows a statement, 1,000 by default.
        hold: reap nothing in the grace after PostgreSQL came up.
        database: an alias that holds the tables, in place of the one Django's routers name.
        trigger: who asked, for the record.
        progress: called after each full batch with the table's name and the jobs reaped so far.

    Database errors do not raise: they are in ``PassResult.all_errors``, and the next pass goes on.

    Raises:
        UnknownTable: there is no such job table.
        ValueError: ``batch_size`` is less than 1, or beyond all bounds.
        UnsupportedDatabase: a job table is not in PostgreSQL.
        ConfigurationError: a setting is wrong.
    """
    rows = values.batch_size(DEFAULT_BATCH_SIZE if batch_size is None else batch_size)
    chosen = named(tables)
    by_alias: dict[str, list[JobTable]] = defaultdict(list)
    for table in chosen:
        by_alias[database or table.alias].append(table)
    run = _Pass(
        result=PassResult({table.name: TableResult() for table in chosen}, dry_run=dry_run),
        batch_size=rows,
        hold=hold,
        trigger=trigger,
        progress=progress,
        ends_at=time.monotonic() + conf.settings().reaper_interval_sec,
    )
    started = time.monotonic()
    for alias, tables_of_alias in by_alias.items():
        run.over(connection_for(alias), tables_of_alias)
    run.result.duration_ms = (time.monotonic() - started) * 1000
    if not dry_run:
        signals.pass_finished.send_robust(PassResult, result=run.result, trigger=trigger)
    return run.result


@dataclass
class _Pass:
    """One pass on its way. ``ends_at`` (monotonic seconds) is where its time is spent: the next
    pass is due by then and goes on with the rest.
    """

    result: PassResult
    batch_size: int
    hold: bool
    trigger: Trigger
    progress: Callable[[str, int], object] | None
    ends_at: float

    def over(self, connection: BaseDatabaseWrapper, tables: Sequence[JobTable]) -> None:
        """Reap the tables of one database and record the pass there."""
        started = time.monotonic()
        held_reason = None
        errors: list[str] = []
        try:
            if self.hold:
                held_reason = retrying(connection, lambda _: guard.reason_to_hold(connection))
            for table in tables if held_reason is None else ():
                self._reap_table(connection, table)
        except Error as error:
            errors.append(in_words(error))
            logger.warning("pass failed: %s", in_words(error))
        self.result.held_reason = self.result.held_reason or held_reason
        self.result.errors += errors
        if not self.result.dry_run:
            self._record(connection, tables, time.monotonic() - started, held_reason, errors)

    def _reap_table(self, connection: BaseDatabaseWrapper, table: JobTable) -> None:
        started = time.monotonic()
        outcome = self.result.tables[table.name]
        try:
            if self.result.dry_run:
                self._take(table, _dry_run(connection, table))
            else:
                self._reap_batches(connection, table, outcome)
        except Error as error:
            outcome.errors.append(table.in_words(error))
            logger.warning("pass over %s failed: %s", table.name, outcome.errors[-1])
        outcome.duration_ms = (time.monotonic() - started) * 1000

    def _reap_batches(
        self, connection: BaseDatabaseWrapper, table: JobTable, outcome: TableResult
    ) -> None:
        bad_rows: list[Any] = []
        while True:
            try:
                jobs = self._reap_batch(connection, table, skip=bad_rows)
            except DatabaseError as error:
                if is_transient(connection, error) or _is_the_tables_fault(error):
                    raise
                bad_rows += self._reap_around_bad_rows(connection, table, outcome, bad_rows)
                continue
            if len(jobs) < self.batch_size:
                return
            if self.progress is not None:
                self.progress(table.name, len(outcome.requeued) + len(outcome.failed))
            if time.monotonic() >= self.ends_at:
                logger.info("pass over %s: time is spent, the next pass goes on", table.name)
                return

    def _reap_batch(
        self,
        connection: BaseDatabaseWrapper,
        table: JobTable,
        *,
        skip: Sequence[Any] = (),
        only: Sequence[Any] | None = None,
    ) -> list[ReapedJob]:
        jobs = retrying(
            connection,
            lambda _: _send(
                connection,
                table.reap_statement,
                {"batch": self.batch_size, "skip": list(skip), "only": only},
                STATEMENT_TIMEOUT_SEC,
            ),
        )
        self._take(table, jobs)
        announce(connection, table, jobs)
        return jobs

    def _reap_around_bad_rows(
        self,
        connection: BaseDatabaseWrapper,
        table: JobTable,
        outcome: TableResult,
        known: Sequence[Any],
    ) -> list[Any]:
        """Reap a batch that holds rows which cannot be written, by halving it until each stands
        alone, and return their keys.
        """
        expired = _dry_run(connection, table, batch=self.batch_size, skip=known)
        bad_rows: list[Any] = []
        parts = [[job.pk for job in expired]]
        while parts:
            part = parts.pop()
            try:
                self._reap_batch(connection, table, only=part)
            except DatabaseError as error:
                if is_transient(connection, error):
                    raise
                if len(part) > 1:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
                    continue
                if not part or len(known) + len(bad_rows) >= MOST_BAD_ROWS:
                    raise
                bad_rows += part
                outcome.errors.append(f"job {part[0]}: {in_words(error)}")
                logger.error("cannot reap %s %s: %s", table.name, part[0], in_words(error))
        return bad_rows

    def _take(self, table: JobTable, jobs: Iterable[ReapedJob]) -> None:
        outcome = self.result.tables[table.name]
        for job in jobs:
            (outcome.requeued if job.fail_code is None else outcome.failed).append(job.pk)

    def _record(
        self,
        connection: BaseDatabaseWrapper,
        tables: Sequence[JobTable],
        seconds: float,
        held_reason: str | None,
        errors: Sequence[str],
    ) -> None:
        outcomes = {table.name: self.result.tables[table.name] for table in tables}
        problems = [*errors, *(f"{n}: {e}" for n, o in outcomes.items() for e in o.errors)]
        row = ReaperPass(
            started_at=Now() - timedelta(seconds=seconds),
            duration_ms=round(seconds * 1000),
            trigger=self.trigger,
            reaper=worker_id(),
            counts={
                name: {"requeued": len(outcome.requeued), "failed": len(outcome.failed)}
                for name, outcome in outcomes.items()
            },
            requeued=sum(len(outcome.requeued) for outcome in outcomes.values()),
            failed=sum(len(outcome.failed) for outcome in outcomes.values()),
            held=held_reason is not None,
            held_reason=held_reason,
            error=storable("\n".join(problems)) if problems else None,
        )
        was_scanned = held_reason is None and not errors
        scans = [Scan(n, o.duration_ms, not o.errors) for n, o in outcomes.items() if was_scanned]

        def write(_: bool) -> None:
            row.pk = None  # An earlier try that was rolled back has given it one.
            with transaction.atomic(using=connection.alias):
                row.save(using=connection.alias, force_insert=True)
                totals.count_pass(connection.alias, scans, held=row.held)

        try:
            retrying(connection, write)
        except Error as error:
            self.result.errors.append(f"the pass could not be recorded: {in_words(error)}")
            logger.warning("pass could not be recorded: %s", in_words(error))
            return
        # In an open transaction of the caller's it would keep other passes from it.
        on_commit(connection, partial(_fold, connection))


def announce(connection: BaseDatabaseWrapper, table: JobTable, jobs: list[ReapedJob]) -> None:
    """Send ``job_reaped`` once the reap is committed."""
    if jobs:
        send = signals.job_reaped.send_robust
        on_commit(connection, partial(send, table.model, table=table.name, jobs=jobs))


def _fold(connection: BaseDatabaseWrapper) -> None:
    with suppress(Error):  # What is not folded now is folded by the next pass.
        totals.fold(connection)


def _dry_run(
    connection: BaseDatabaseWrapper,
    table: JobTable,
    *,
    batch: int | None = None,
    skip: Sequence[Any] = (),
) -> list[ReapedJob]:
    return retrying(
        connection,
        lambda _: _send(
            connection,
            table.reap_dry_run_statement,
            {"batch": batch, "skip": list(skip), "only": None},
            DRY_RUN_TIMEOUT_SEC,
        ),
    )


def _send(
    connection: BaseDatabaseWrapper, statement: str, params: dict[str, Any], timeout_sec: float
) -> list[ReapedJob]:
    rows = fetch_within(
        connection,
        statement,
        {**params, "policies": conf.settings().policies_json, "reaper": worker_id()},
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=timeout_sec,
    )
    return list(map(ReapedJob._make, rows))


def _is_the_tables_fault(error: Exception) -> bool:
    """Return whether no row can be to blame: it ran too long, or the table is not as it should."""
    return getattr(error.__cause__, "sqlstate", None) in TABLE_SQLSTATES
