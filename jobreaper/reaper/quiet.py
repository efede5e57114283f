"""Whether a pass has anything to do, asked in one statement.

Most passes find nothing. Only one that may find something asks table by table, so that a problem
with one table affects no other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import compress
from typing import Final, NamedTuple

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import Identifier

from jobreaper import conf
from jobreaper.db import fetch_within, in_transaction, is_lost
from jobreaper.identity import local_clock, machine
from jobreaper.reaper import hold, sending, silence
from jobreaper.tables import JobTable, statements

# So many rows of totals may wait for a pass that folds them. A scrape reads them all.
MOST_UNFOLDED: Final = 50


class Asked(NamedTuple):
    """What a pass may have to do: why it is held, if it heeds that; whether there may be refused or
    hidden rows; which tables may have due ones; and whether the totals have to be folded.
    """

    held_reason: str | None
    refused: bool
    hidden: bool
    due: Collection[JobTable]
    folds: bool

    def is_quiet(self, *, holds: bool) -> bool:
        """Return whether a pass certainly has nothing to do and, if it ``holds``, is not held."""
        return not (self.refused or self.hidden or self.due or (holds and self.held_reason))


def ask(connection: BaseDatabaseWrapper, tables: Sequence[JobTable]) -> Asked | None:
    """Ask what a pass over ``tables`` may have to do. If the database does not say so, whatever the
    reason, the answer is ``None``, and the pass has to ask table by table.
    """
    # There, an error would end the caller's transaction.
    if not tables or in_transaction(connection):
        return None
    settings = conf.settings()
    policies = [settings.default_policy, *settings.stages.values()]
    has_ttl = any(policy.ttl_sec is not None for policy in policies)
    asked_sec = local_clock()
    try:
        rows = fetch_within(
            connection,
            _statement(tuple(tables), has_ttl),
            {
                "tables": [table.name for table in tables],
                "identifiers": [Identifier(*each.name_parts).as_string(None) for each in tables],
                "machine": machine(),
                "grace_sec": settings.recovery_grace_sec,
                "most_unfolded": MOST_UNFOLDED,
                "batch": 1,
                "skip": [],
                "silent_by": silence.ALL,
                **sending.who_and_how(),
            },
            lock_timeout_sec=sending.LOCK_TIMEOUT_SEC,
            statement_timeout_sec=sending.STATEMENT_TIMEOUT_SEC,
        )
    except Error:
        if is_lost(connection):
            connection.close()
        return None
    now, up_sec, refused, hidden, are_due, folds = rows[0][:6]
    answer = hold.Answer(now, hold.moments(rows, 6), up_sec, asked_sec, local_clock())
    grace_sec = settings.recovery_grace_sec
    reason = hold.reason_by(answer, grace_sec) if grace_sec else None
    return Asked(reason, refused, hidden, list(compress(tables, are_due)), folds)


@lru_cache(maxsize=64)
def _statement(tables: tuple[JobTable, ...], has_ttl: bool) -> str:
    return statements.quiet(tables, has_ttl=has_ttl)
