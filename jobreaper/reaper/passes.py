"""One pass of the reaper over the job tables.

A pass goes table by table and batch by batch. A batch is one statement in its own transaction with
its own timeouts, so any number of reapers can run at once, and one that is killed leaves nothing
behind. A problem with one table or row affects only that table or row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from django.db import Error, models
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, signals, values
from jobreaper.db import (
    connection_for,
    in_words,
    is_transient,
    on_commit,
    one_outage,
    retrying,
    storable,
)
from jobreaper.identity import machine, worker_id
from jobreaper.models import ReaperPass
from jobreaper.reaper import hold, silence, totals
from jobreaper.reaper.quiet import Asked, ask
from jobreaper.reaper.results import PassResult, ReapedJob, TableResult, jobs_of
from jobreaper.reaper.sending import send
from jobreaper.reaper.silence import Look
from jobreaper.reaper.table_pass import DEFAULT_BATCH_SIZE, TablePass
from jobreaper.reaper.totals import Scan
from jobreaper.states import Trigger
from jobreaper.tables import JobTable, by_alias, hidden, named, refused

R = TypeVar("R")

logger = logging.getLogger("jobreaper.reaper")

# A dry run reads everything in one statement.
DRY_RUN_TIMEOUT_SEC: Final = 300.0


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
    """Requeue every job whose lease ran out, or fail it, and return what was done.

    Args:
        tables: names or models of job tables; all of them by default.
        dry_run: report the verdicts and change nothing.
        batch_size: rows per statement, 1,000 by default.
        hold: reap nothing in the grace period after PostgreSQL came up, or after many workers fell
            silent at once.
        database: the alias of the tables, instead of the one that Django's routers choose.
        trigger: who asked, which is recorded.
        progress: called after each full batch with the table's name and the jobs reaped so far.

    Database errors are not raised: ``PassResult.all_errors`` contains them, and the next pass
    continues.

    Raises:
        UnknownTable: there is no such job table.
        ValueError: ``batch_size`` is less than 1 or too large.
        UnsupportedDatabase: a job table is not in PostgreSQL.
        ConfigurationError: a setting is invalid.
    """
    rows = values.batch_size(DEFAULT_BATCH_SIZE if batch_size is None else batch_size)
    chosen = named(tables)
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
    for alias, tables_of_alias in by_alias(chosen, database=database).items():
        run.over(connection_for(alias), tables_of_alias)
    run.result.duration_ms = (time.monotonic() - started) * 1000
    if not dry_run:
        signals.pass_finished.send_robust(PassResult, result=run.result, trigger=trigger)
    return run.result


class _Held(Exception):
    """Nothing may be reaped; its text is the reason."""


@dataclass
class _Pass:
    """One running pass. At ``ends_at`` (monotonic seconds), its time is used up: the next pass is
    due then and continues with the rest.
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
        looked = Look((), ())
        is_through = False
        asked = None if self.result.dry_run else ask(connection, tables)
        if asked is not None and asked.is_quiet(holds=self.hold):
            self._stay_quiet(connection, tables, started, asked)
            return
        try:
            if asked is None:
                retrying(connection, lambda _: self._ask_guard(connection))
            elif self.hold and asked.held_reason:
                raise _Held(asked.held_reason)
            self._see_trouble(connection, tables, asked)
            looked = self._look_around(connection, tables, asked)
            held_reason = looked.reason
            if looked.silent_by != silence.NONE:
                for table in looked.tables:
                    self._reap_table(connection, table, looked)
                    self.tables_to_go -= 1
                is_through = True
        except _Held as held:
            held_reason = str(held)
        except Error as error:
            errors.append(in_words(error))
            logger.warning("pass failed: %s", in_words(error))
        self.result.held_reason = self.result.held_reason or held_reason
        self.result.errors += errors
        if not self.result.dry_run:
            row = ReaperPass(
                held=held_reason is not None,
                held_reason=held_reason,
                silent_until=looked.silent_until,
            )
            scanned = tables if is_through else ()
            self._record(connection, tables, row, time.monotonic() - started, errors, scanned)

    def _stay_quiet(
        self,
        connection: BaseDatabaseWrapper,
        tables: Sequence[JobTable],
        started: float,
        asked: Asked,
    ) -> None:
        """Record that nothing was to do in ``tables``, which were asked together."""
        seconds = time.monotonic() - started
        for table in tables:
            self.result.tables[table.name].duration_ms += seconds * 1000 / len(tables)
        self.tables_to_go -= len(tables)
        self._record(connection, tables, ReaperPass(), seconds, [], tables, folds=asked.folds)

    def _see_trouble(
        self, connection: BaseDatabaseWrapper, tables: Sequence[JobTable], asked: Asked | None
    ) -> None:
        """Find the rows that could not be written, and tables of which rows are hidden."""
        if asked is None or asked.refused:
            for table, found in refused.of(connection, tables).items():
                self.result.tables[table.name].refused = found
        if asked is None or asked.hidden:
            for name, reason in hidden(connection, tables).items():
                self.result.tables[name].errors.append(reason)
                logger.warning("%s", reason)

    def _ask_guard(self, connection: BaseDatabaseWrapper) -> None:
        """Raise ``_Held`` if nothing may be reaped now."""
        if self.hold and (reason := hold.reason_to_hold(connection)):
            raise _Held(reason)

    def retrying(self, connection: BaseDatabaseWrapper, send: Callable[[], R]) -> R:
        """Call ``send`` until it succeeds, and check the hold before each further call, because the
        problem may have been a restart.
        """
        tries = 0

        def send_guarded(_: bool) -> R:
            nonlocal tries
            tries += 1
            if tries > 1:
                self._ask_guard(connection)
            return send()

        return retrying(connection, send_guarded)

    def _look_around(
        self, connection: BaseDatabaseWrapper, tables: Sequence[JobTable], asked: Asked | None
    ) -> Look:
        """Look whether there is anything to reap, and if so, whether it may be taken."""
        if not (self.hold and conf.settings().recovery_grace_sec):
            return Look(tables, tables)
        may_be_due = tables if asked is None else asked.due
        found = {}
        for table in tables:
            with self._part_of(table):
                may_be = table in may_be_due
                found[table] = may_be and bool(self._verdicts(connection, table, most=1))
        self.tables_to_go -= len(tables) - len(found)
        due = [table for table, has_any in found.items() if has_any]
        return self.retrying(connection, lambda: silence.look(connection, list(found), due))

    def _verdicts(
        self,
        connection: BaseDatabaseWrapper,
        table: JobTable,
        *,
        most: int | None = None,
        silent_by: str = silence.ALL,
    ) -> list[ReapedJob]:
        """Return what a pass would do, at ``most`` so much of it, and change nothing."""
        statement = table.reap_dry_run_statement
        params: dict[str, Any] = {"batch": most, "skip": [], "silent_by": silent_by}
        timeout_sec = None if most else DRY_RUN_TIMEOUT_SEC
        rows = self.retrying(
            connection, lambda: send(connection, statement, params, timeout_sec=timeout_sec)
        )
        return jobs_of(table, rows)

    def _reap_table(self, connection: BaseDatabaseWrapper, table: JobTable, looked: Look) -> None:
        outcome = self.result.tables[table.name]
        with self._part_of(table):
            if not self.result.dry_run:
                self._table_pass(connection, table, outcome, looked).reap()
            elif table in looked.due:
                outcome.take(self._verdicts(connection, table, silent_by=looked.silent_by))

    @contextmanager
    def _part_of(self, table: JobTable) -> Iterator[None]:
        """Time what is done to a table, and let its errors stop no other one."""
        started = time.monotonic()
        outcome = self.result.tables[table.name]
        try:
            yield
        except Error as error:
            outcome.errors.append(table.in_words(error))
            logger.warning("pass over %s failed: %s", table.name, outcome.errors[-1])
        finally:
            outcome.duration_ms += (time.monotonic() - started) * 1000

    def _table_pass(
        self,
        connection: BaseDatabaseWrapper,
        table: JobTable,
        outcome: TableResult,
        looked: Look,
    ) -> TablePass:
        return TablePass(
            connection,
            table,
            outcome,
            self.batch_size,
            self.ends_at,
            share_sec=lambda: (self.ends_at - time.monotonic()) / self.tables_to_go,
            retrying=partial(self.retrying, connection),
            progress=self.progress,
            silent_by=looked.silent_by,
            is_due=table in looked.due,
        )

    def _record(
        self,
        connection: BaseDatabaseWrapper,
        tables: Sequence[JobTable],
        row: ReaperPass,
        seconds: float,
        errors: Sequence[str],
        scanned: Sequence[JobTable],
        *,
        folds: bool = True,
    ) -> None:
        """Write the record and the counts of a pass that looked for leases in ``scanned``."""
        outcomes = {table.name: self.result.tables[table.name] for table in tables}
        problems = [*errors, *(f"{n}: {e}" for n, o in outcomes.items() for e in o.errors)]
        row.duration_ms = round(seconds * 1000)
        row.trigger = self.trigger
        row.reaper = worker_id()
        row.machine = machine()
        row.counts = {
            name: {"requeued": len(outcome.requeued), "failed": len(outcome.failed)}
            for name, outcome in outcomes.items()
        }
        row.requeued = sum(len(outcome.requeued) for outcome in outcomes.values())
        row.failed = sum(len(outcome.failed) for outcome in outcomes.values())
        row.error = storable("\n".join(problems)) if problems else None
        scans = [
            Scan(table.name, outcomes[table.name].duration_ms, not outcomes[table.name].errors)
            for table in scanned
        ]

        def write(_: bool) -> None:
            totals.record(connection, row, scans, seconds)

        try:
            retrying(connection, write)
        except Error as error:
            self.result.errors.append(f"the pass could not be recorded: {in_words(error)}")
            logger.warning("pass could not be recorded: %s", in_words(error))
            return
        # In an open transaction of the caller, it would block other passes.
        if folds:
            on_commit(connection, partial(self._fold, connection))

    def _fold(self, connection: BaseDatabaseWrapper) -> None:
        try:
            totals.fold(connection)
        except Error as error:
            # What another transaction is in the way of now is folded by the next pass.
            if not is_transient(connection, error):
                problem = f"the totals could not be folded: {in_words(error)}"
                self.result.errors.append(problem)
                logger.warning("%s", problem)
