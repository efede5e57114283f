"""The totals of the counters, stored beside the jobs in ``jobreaper_totals``.

Every action that is counted adds a row in the same transaction, so the counters cannot disagree
with the events, and outlive them. A total is the sum of its rows, so adding one does not wait for
others. Each pass folds the rows of a total into one, which does not change the sum, and gives new
stages their names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, sql
from jobreaper.db import fetch, fetch_within
from jobreaper.identity import local_clock
from jobreaper.models import ReaperPass
from jobreaper.states import Counted
from jobreaper.tables import statements

# The next pass can do a fold, but a scrape must answer soon.
LOCK_TIMEOUT_SEC: Final = 1.0
STATEMENT_TIMEOUT_SEC: Final = 5.0


_RECORDED: Final = (
    "duration_ms",
    "trigger",
    "reaper",
    "machine",
    "requeued",
    "failed",
    "held",
    "held_reason",
    "silent_until",
    "error",
)


@dataclass(frozen=True)
class Sum:
    """One total: the count, the sum of seconds, and the last time (seconds since 1970)."""

    name: str
    table: str
    stage: str
    count: int
    microseconds: int
    last_at: float


class Scan(NamedTuple):
    """One table's part in a pass: how long it took, and whether it was complete."""

    table: str
    duration_ms: float
    is_clean: bool


def known_stages() -> list[str]:
    """Return the stages that always keep their name: those with a policy, and the empty stage."""
    return ["", *conf.settings().stages]


def record(
    connection: BaseDatabaseWrapper, row: ReaperPass, scans: Sequence[Scan], seconds: float
) -> None:
    """Record a pass that began ``seconds`` ago, and count it."""
    counted = [(Counted.SCANS, scan.table, round(scan.duration_ms * 1000)) for scan in scans]
    counted += [(Counted.CLEAN_SCANS, scan.table, 0) for scan in scans if scan.is_clean]
    if row.held:
        counted.append((Counted.HELD_PASSES, "", 0))
    if row.silent_until is not None:
        counted.append((Counted.COMMON_SILENCES, "", 0))
    fetch(
        connection,
        sql.render("statements/record_pass"),
        {
            **{name: getattr(row, name) for name in _RECORDED},
            "counts": json.dumps(row.counts),
            "seconds": seconds,
            # Read together with the database's clock, to be compared with it by later passes.
            "machine_sec": local_clock() - seconds,
            "names": [str(name) for name, _, _ in counted],
            "tables": [table for _, table, _ in counted],
            "microseconds": [microseconds for _, _, microseconds in counted],
        },
    )


def fold(connection: BaseDatabaseWrapper) -> None:
    """Give stages their names, and merge the rows of each total into one."""
    _fetch(connection, "fold_totals")


def read(connection: BaseDatabaseWrapper) -> list[Sum]:
    """Return all totals of a database, except those of stages that the next fold will name."""
    return [Sum(*row) for row in _fetch(connection, "totals")]


_statement = cache(statements.totals)


def _fetch(connection: BaseDatabaseWrapper, name: str) -> list[tuple[Any, ...]]:
    return fetch_within(
        connection,
        _statement(name),
        {"known_stages": known_stages()},
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=STATEMENT_TIMEOUT_SEC,
    )
