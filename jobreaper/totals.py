"""What the counters have counted, kept beside the jobs in ``jobreaper_totals``.

Whoever does what is counted adds a row in the same transaction, so the counters cannot disagree
with the events, and outlive them. A total is the sum of its rows: adding one waits for nobody. Each
pass folds the rows of a total into one, which changes no sum, and gives new stages their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, rendering
from jobreaper.db import fetch_within
from jobreaper.models import Total
from jobreaper.states import Counted

# A fold can be left to the next pass, a scrape must answer soon.
LOCK_TIMEOUT_SEC: Final = 1.0
STATEMENT_TIMEOUT_SEC: Final = 5.0


@dataclass(frozen=True)
class Sum:
    """One total: how often, how long altogether, when last (seconds since 1970)."""

    name: str
    table: str
    stage: str
    count: int
    microseconds: int
    last_at: float


class Scan(NamedTuple):
    """One table's part in a pass: how long it took, and whether nothing was left undone."""

    table: str
    duration_ms: float
    is_clean: bool


def known_stages() -> list[str]:
    """Return the stages that always keep their name: those with a policy, and no stage at all."""
    return ["", *conf.settings().stages]


def count_pass(alias: str, scans: list[Scan], *, held: bool) -> None:
    """Count a pass, in the caller's transaction."""
    rows = [
        Total(name=Counted.SCANS, table=scan.table, microseconds=round(scan.duration_ms * 1000))
        for scan in scans
    ]
    rows += [Total(name=Counted.CLEAN_SCANS, table=scan.table) for scan in scans if scan.is_clean]
    if held:
        rows.append(Total(name=Counted.HELD_PASSES, table=""))
    Total.objects.using(alias).bulk_create(rows)


def fold(connection: BaseDatabaseWrapper) -> None:
    """Give stages their names, and merge the rows of each total into one."""
    _fetch(connection, "fold_totals")


def read(connection: BaseDatabaseWrapper) -> list[Sum]:
    """Return every total of a database but those of stages that the next fold names."""
    return [Sum(*row) for row in _fetch(connection, "totals")]


def _fetch(connection: BaseDatabaseWrapper, statement: str) -> list[tuple[Any, ...]]:
    return fetch_within(
        connection,
        rendering.totals(statement),
        {"known_stages": known_stages()},
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=STATEMENT_TIMEOUT_SEC,
    )
