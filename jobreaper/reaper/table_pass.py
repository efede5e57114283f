"""The pass over one table: batch after batch, without the rows that cannot be written."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeVar

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper.db import may_be_a_rows_fault
from jobreaper.reaper.refused import RefusedRows
from jobreaper.reaper.results import TableResult, jobs_of
from jobreaper.reaper.sending import announce, send, send_one_by_one
from jobreaper.tables import JobTable, refused
from jobreaper.tables.refused import Tried

R = TypeVar("R")

logger = logging.getLogger("jobreaper.reaper")

DEFAULT_BATCH_SIZE: Final = 1000

# The minimum time for the rows of a table that cannot be written, even at the end of a pass.
LEAST_SEARCH_SEC: Final = 5.0


class ReapedBefore(Exception):
    """A batch took rows that this pass had already reaped, and was rolled back."""

    def __init__(self, keys: Iterable[Any]) -> None:
        super().__init__()
        self.keys = list(keys)


@dataclass
class TablePass:
    """The running pass over one table, until ``ends_at`` (monotonic seconds) or until nothing is
    left. ``share_sec`` is its time for rows that cannot be written. It takes leases of workers that
    fell silent by ``silent_by``, a time as the database writes it; without ``is_due``, there are
    none.
    """

    connection: BaseDatabaseWrapper
    table: JobTable
    outcome: TableResult
    batch_size: int
    ends_at: float
    share_sec: Callable[[], float]
    retrying: Callable[[Callable[[], Any]], Any]
    progress: Callable[[str, int], object] | None
    silent_by: str
    is_due: bool
    reaped: set[Any] = field(default_factory=set)
    in_trouble: bool = False
    one_by_one: bool = False

    def reap(self) -> None:
        """Reap leases that have run out, and try again the rows that could not be written and are
        due.
        """
        known = self.outcome.refused
        try:
            if self.is_due:
                self._reap_new()
            if known.due:
                self._try_again(known.now)
        finally:
            self.rows.tell_how_many()
        if known.to_claim:
            self.rows.forget_unqueued()
        if known.due or known.to_claim or self.rows.count:
            now = refused.of(self.connection, [self.table])
            self.outcome.refused = now[self.table]

    @cached_property
    def rows(self) -> RefusedRows:
        """The results of rows that are tried one by one."""
        return RefusedRows(self.connection, self.table, self.outcome)

    def _reap_new(self) -> None:
        while self._reap_some():
            if self.progress is not None:
                self.progress(self.table.name, len(self.reaped))
            if time.monotonic() >= self.ends_at:
                logger.info("pass over %s: time is spent, the next pass goes on", self.table.name)
                return

    def _reap_some(self) -> bool:
        """Reap a batch, or the rows around its bad ones, and return whether there may be more. If
        so, some rows were reaped or left out, so this terminates.
        """
        refusal: DatabaseError | None = None
        try:
            if not self.one_by_one:
                return len(self._reap_batch(self.batch_size)) >= self.batch_size
        except ReapedBefore as before:
            self._leave(before)
            return True
        except DatabaseError as error:
            if not may_be_a_rows_fault(self.connection, error):
                raise
            refusal = error
            self._enter_trouble()
        try:
            tried = self._try_each(again=False)
        except ReapedBefore as before:
            self._leave(before)
            return True
        if refusal is not None and not tried:
            raise refusal
        bad = sum(each.refusal is not None for each in tried)
        # If most are refused, the next batch will be refused too.
        self.one_by_one = 2 * bad > len(tried)
        return bool(tried)

    def _enter_trouble(self) -> None:
        if not self.in_trouble:
            self.in_trouble = True
            # If the table refuses even this, the problem is the table itself.
            self._reap_batch(0)
            self.ends_at = time.monotonic() + max(self.share_sec(), LEAST_SEARCH_SEC)

    def _leave(self, before: ReapedBefore) -> None:
        logger.warning(
            "%s: %d jobs have run out again within the pass, the next pass goes on",
            self.table.name,
            len(before.keys),
        )
        self.rows.left += before.keys

    def _try_again(self, now: datetime | None) -> None:
        """Try each of the remembered rows that are due alone. A row that can no longer be tried is
        finished or deleted, or has a valid lease again.
        """
        until = max(self.ends_at, time.monotonic() + LEAST_SEARCH_SEC)
        tried: list[Tried] = []
        is_through = False
        while not is_through and self.rows.can_remember and time.monotonic() < until:
            try:
                found = self._try_each(again=True)
            except ReapedBefore:
                return
            tried += found
            is_through = all(each.row is None and each.refusal is None for each in found)
            self.rows.forget(tried, before=now if is_through else None)

    def _try_each(self, *, again: bool) -> list[Tried]:
        """Try candidates one by one, and return the result of each: those that are not remembered
        or, with ``again``, the remembered ones that are due.
        """
        most = min(self.batch_size, DEFAULT_BATCH_SIZE)
        params = {
            "batch": most,
            "skip": self.rows.left,
            "again": again,
            "silent_by": self.silent_by,
        }
        tried: list[Tried] = self.retrying(
            lambda: send_one_by_one(
                self.connection,
                self._one_by_one_statement,
                params,
                search_sec=max(self.ends_at - time.monotonic(), LEAST_SEARCH_SEC / 50),
                check=self._refuse_reaped,
            )
        )
        self._took(self.rows.take(tried))
        return tried

    @cached_property
    def _one_by_one_statement(self) -> str:
        return refused.one_by_one_statement(self.table, *refused.pass_one_by_one(self.table))

    def _reap_batch(self, size: int) -> list[tuple[Any, ...]]:
        params = {"batch": size, "skip": self.rows.left, "silent_by": self.silent_by}
        # The first batch cannot take what it has taken before.
        check = self._refuse_reaped if self.reaped else None
        rows: list[tuple[Any, ...]] = self.retrying(
            lambda: send(self.connection, self.table.reap_statement, params, check=check)
        )
        self._took(rows)
        return rows

    def _took(self, rows: list[tuple[Any, ...]]) -> None:
        self.reaped.update(row[0] for row in rows)
        jobs = jobs_of(self.table, rows)
        self.outcome.take(jobs)
        announce(self.connection, self.table, jobs)

    def _refuse_reaped(self, rows: list[tuple[Any, ...]]) -> None:
        if before := self.reaped.intersection(row[0] for row in rows):
            raise ReapedBefore(before)
