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
    MOST_NAMED_ROWS,
    connection_for,
    fetch_within,
    in_words,
    is_transient,
    on_commit,
    one_outage,
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
# A statement ended by such a timeout. Trying its rows one by one would take as long again.
QUERY_CANCELED: Final = "57014"
# What a table has to get around rows that cannot be written, however little of the pass is left.
LEAST_SEARCH_SEC: Final = 5.0
# Where so many of the oldest rows cannot be written, and none can, others are tried by lot.
ENOUGH_IN_VAIN: Final = 20


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

    def take(self, jobs: Iterable[ReapedJob]) -> None:
        """Note the keys of jobs that were reaped."""
        for job in jobs:
            (self.requeued if job.fail_code is None else self.failed).append(job.pk)


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
        """Whether nothing was reaped, or nothing more, on purpose."""
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


@one_outage()
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
        tables_to_go=len(chosen),
    )
    started = time.monotonic()
    for alias, tables_of_alias in by_alias.items():
        run.over(connection_for(alias), tables_of_alias)
    run.result.duration_ms = (time.monotonic() - started) * 1000
    if not dry_run:
        signals.pass_finished.send_robust(PassResult, result=run.result, trigger=trigger)
    return run.result


class _Held(Exception):
    """Nothing must be reaped; its text is the reason."""


class _ReapedBefore(Exception):
    """A batch took rows that this pass has reaped already, and was rolled back."""

    def __init__(self, keys: Iterable[Any]) -> None:
        super().__init__()
        self.keys = list(keys)


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
    tables_to_go: int

    def over(self, connection: BaseDatabaseWrapper, tables: Sequence[JobTable]) -> None:
        """Reap the tables of one database and record the pass there."""
        started = time.monotonic()
        held_reason = None
        errors: list[str] = []
        try:
            retrying(connection, lambda _: self._ask_guard(connection))
            for table in tables:
                self._reap_table(connection, table)
                self.tables_to_go -= 1
        except _Held as held:
            held_reason = str(held)
        except Error as error:
            errors.append(in_words(error))
            logger.warning("pass failed: %s", in_words(error))
        self.result.held_reason = self.result.held_reason or held_reason
        self.result.errors += errors
        if not self.result.dry_run:
            self._record(connection, tables, time.monotonic() - started, held_reason, errors)

    def _ask_guard(self, connection: BaseDatabaseWrapper) -> None:
        """Raise ``_Held`` where nothing must be reaped now."""
        if self.hold and (reason := guard.reason_to_hold(connection)):
            raise _Held(reason)

    def retrying(
        self, connection: BaseDatabaseWrapper, send: Callable[[], list[ReapedJob]]
    ) -> list[ReapedJob]:
        """Call ``send`` until it succeeds, and ask the guard before each further call: what was in
        the way may have been a restart.
        """
        tries = 0

        def send_guarded(_: bool) -> list[ReapedJob]:
            nonlocal tries
            tries += 1
            if tries > 1:
                self._ask_guard(connection)
            return send()

        return retrying(connection, send_guarded)

    def look(
        self,
        connection: BaseDatabaseWrapper,
        table: JobTable,
        *,
        batch: int | None = None,
        skip: Sequence[Any] = (),
        by_lot: bool = False,
    ) -> list[ReapedJob]:
        """Return what a pass would do, and change nothing."""
        statement = table.reap_by_lot_statement if by_lot else table.reap_dry_run_statement
        params = {"batch": batch, "skip": list(skip), "only": None}
        return self.retrying(
            connection, lambda: _send(connection, statement, params, DRY_RUN_TIMEOUT_SEC)
        )

    def _reap_table(self, connection: BaseDatabaseWrapper, table: JobTable) -> None:
        started = time.monotonic()
        outcome = self.result.tables[table.name]
        try:
            if self.result.dry_run:
                outcome.take(self.look(connection, table))
            else:
                _TablePass(self, connection, table, outcome, self.ends_at).reap()
        except Error as error:
            outcome.errors.append(table.in_words(error))
            logger.warning("pass over %s failed: %s", table.name, outcome.errors[-1])
        finally:
            outcome.duration_ms = (time.monotonic() - started) * 1000

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


@dataclass
class _TablePass:
    """The pass over one table on its way. ``left`` holds the keys that it goes without from now on:
    of rows that cannot be written, are locked, or are as they were though they have been reaped.
    """

    run: _Pass
    connection: BaseDatabaseWrapper
    table: JobTable
    outcome: TableResult
    ends_at: float
    reaped: set[Any] = field(default_factory=set)
    left: list[Any] = field(default_factory=list)
    bad_rows: int = 0
    in_trouble: bool = False
    by_lot: bool = False

    def reap(self) -> None:
        """Send batch after batch until nothing is left or the time is spent."""
        try:
            while self._reap_some():
                if self.run.progress is not None:
                    self.run.progress(self.table.name, len(self.reaped))
                if time.monotonic() >= self.ends_at:
                    logger.info(
                        "pass over %s: time is spent, the next pass goes on", self.table.name
                    )
                    return
        finally:
            if self.bad_rows > MOST_NAMED_ROWS:
                more = f"{self.bad_rows - MOST_NAMED_ROWS:,} more rows cannot be written"
                self.outcome.errors.append(more)
                logger.error("cannot reap %s: %s", self.table.name, more)

    def _reap_some(self) -> bool:
        """Reap a batch, or around its bad rows; return whether there may be more. Where there may,
        some rows have been reaped or are ``left``, so that this comes to an end.
        """
        try:
            return len(self._reap_batch(skip=self.left)) >= self.run.batch_size
        except _ReapedBefore as before:
            logger.warning(
                "%s: %d jobs have run out again within the pass, the next pass goes on",
                self.table.name,
                len(before.keys),
            )
            self.left += before.keys
        except DatabaseError as error:
            if not self._may_be_a_rows_fault(error):
                raise
            self._reap_around_bad_rows(error)
        return True

    def _reap_around_bad_rows(self, refusal: DatabaseError) -> None:
        """Reap a batch that holds rows which cannot be written, by halving it until each stands
        alone.
        """
        if not self.in_trouble:
            self.in_trouble = True
            # A table that refuses even this is itself at fault.
            self._reap_batch(only=[])
            now = time.monotonic()
            share = (self.run.ends_at - now) / self.run.tables_to_go
            self.ends_at = now + max(share, LEAST_SEARCH_SEC)
        most = min(self.run.batch_size, DEFAULT_BATCH_SIZE)
        found = self.run.look(
            self.connection, self.table, batch=most, skip=self.left, by_lot=self.by_lot
        )
        if not found:
            raise refusal
        self.left += [job.pk for job in found if job.pk in self.reaped]
        parts = [[job.pk for job in found if job.pk not in self.reaped]]
        left_before, reaped_before = len(self.left), len(self.reaped)
        while parts and time.monotonic() < self.ends_at:
            in_vain = len(self.left) - left_before
            if in_vain >= ENOUGH_IN_VAIN and len(self.reaped) == reaped_before and not self.by_lot:
                break
            part = parts.pop()
            try:
                self._reap_batch(only=part)
                self.left += [key for key in part if key not in self.reaped]
            except DatabaseError as error:
                if not self._may_be_a_rows_fault(error):
                    raise
                if len(part) > 1:
                    # The later half first: rows that cannot be written grow old.
                    middle = len(part) // 2
                    parts += [part[:middle], part[middle:]]
                else:
                    self._name(part[0], error)
                    self.left += part
        if parts and not self.bad_rows and time.monotonic() >= self.ends_at:
            raise refusal
        self.by_lot = len(self.reaped) == reaped_before

    def _name(self, key: Any, error: DatabaseError) -> None:
        self.bad_rows += 1
        if self.bad_rows <= MOST_NAMED_ROWS:
            self.outcome.errors.append(f"job {key}: {in_words(error)}")
            logger.error("cannot reap %s %s: %s", self.table.name, key, in_words(error))

    def _may_be_a_rows_fault(self, error: DatabaseError) -> bool:
        was_canceled = getattr(error.__cause__, "sqlstate", None) == QUERY_CANCELED
        return not (was_canceled or is_transient(self.connection, error))

    def _reap_batch(
        self, *, skip: Sequence[Any] = (), only: Sequence[Any] | None = None
    ) -> list[ReapedJob]:
        params = {"batch": self.run.batch_size, "skip": list(skip), "only": only}
        jobs = self.run.retrying(
            self.connection,
            lambda: _send(
                self.connection,
                self.table.reap_statement,
                params,
                STATEMENT_TIMEOUT_SEC,
                check=self._refuse_reaped,
            ),
        )
        self.reaped.update(job.pk for job in jobs)
        self.outcome.take(jobs)
        announce(self.connection, self.table, jobs)
        return jobs

    def _refuse_reaped(self, rows: list[tuple[Any, ...]]) -> None:
        if before := self.reaped.intersection(row[0] for row in rows):
            raise _ReapedBefore(before)


def announce(connection: BaseDatabaseWrapper, table: JobTable, jobs: list[ReapedJob]) -> None:
    """Send ``job_reaped`` once the reap is committed."""
    if jobs:
        send = signals.job_reaped.send_robust
        on_commit(connection, partial(send, table.model, table=table.name, jobs=jobs))


def _fold(connection: BaseDatabaseWrapper) -> None:
    with suppress(Error):  # What is not folded now is folded by the next pass.
        totals.fold(connection)


def _send(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: dict[str, Any],
    timeout_sec: float,
    check: Callable[[list[tuple[Any, ...]]], object] | None = None,
) -> list[ReapedJob]:
    rows = fetch_within(
        connection,
        statement,
        {**params, "policies": conf.settings().policies_json, "reaper": worker_id()},
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=timeout_sec,
        check=check,
    )
    return list(map(ReapedJob._make, rows))
