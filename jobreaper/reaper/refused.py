"""Handles rows of one table that cannot be written, for example because of a constraint.

A batch with such a row fails as a whole. Then its rows are tried one by one, and refused ones are
remembered: later batches leave them out, and later passes try them again alone, after a minute at
first and up to an hour later on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper.db import MOST_NAMED_ROWS, in_words
from jobreaper.reaper.results import TableResult
from jobreaper.states import Verb
from jobreaper.tables import JobTable, refused
from jobreaper.tables.refused import Tried

logger = logging.getLogger("jobreaper.reaper")


@dataclass
class RefusedRows:
    """The results for the rows of one table that were tried one by one. ``left`` contains the keys
    of those that were neither reaped nor remembered, and are skipped from now on.
    """

    connection: BaseDatabaseWrapper
    table: JobTable
    outcome: TableResult
    left: list[Any] = field(default_factory=list)
    count: int = 0
    can_remember: bool = True
    _met: set[str] = field(default_factory=set)

    def take(self, tried: list[Tried]) -> list[tuple[Any, ...]]:
        """Remember the refused rows, and return the rows of the jobs that were reaped."""
        errors = {each.key: each.refusal for each in tried if each.refusal is not None}
        for key, error in errors.items():
            self._name(key, error)
        self._keep(lambda: refused.remember(self.connection, self.table, Verb.REAP, errors))
        # A row that appears twice was not left out although it was remembered.
        left_out = errors.keys() - self._met if self.can_remember else set[str]()
        self._met |= errors.keys()
        self.left += [each.pk for each in tried if each.row is None and each.key not in left_out]
        return [each.row for each in tried if each.row is not None]

    def forget(self, tried: list[Tried], *, before: datetime | None) -> None:
        """Forget rows that could be written this time and, if all that were due ``before`` have
        been tried, those that are no longer candidates.
        """
        written = [each.key for each in tried if each.row is not None]
        locked = [each.key for each in tried if each.row is None]
        self._keep(
            lambda: refused.forget(
                self.connection, self.table, Verb.REAP, written, before=before, locked=locked
            )
        )

    def forget_unqueued(self) -> None:
        """Forget rows that could not be claimed and are not queued any more."""
        self._keep(lambda: refused.forget_unqueued(self.connection, self.table))

    def tell_how_many(self) -> None:
        """Count the refused rows beyond those that were named."""
        if self.count > MOST_NAMED_ROWS:
            more = f"{self.count - MOST_NAMED_ROWS:,} more rows cannot be written"
            self.outcome.errors.append(more)
            logger.error("cannot reap %s: %s", self.table.name, more)

    def _name(self, key: str, error: str) -> None:
        self.count += 1
        if self.count <= MOST_NAMED_ROWS:
            self.outcome.errors.append(f"job {key}: {error}")
            logger.error("cannot reap %s %s: %s", self.table.name, key, error)

    def _keep(self, write: Callable[[], None]) -> None:
        """Write what has to be remembered. If that fails, the pass continues and reports
        it once.
        """
        if not self.can_remember:
            return
        try:
            write()
        except Error as error:
            self.can_remember = False
            problem = f"rows that cannot be written are not remembered: {in_words(error)}"
            self.outcome.errors.append(problem)
            logger.warning("%s: %s", self.table.name, problem)
