"""Asking the databases how the job tables stand, in bounded time.

Each database is asked in a thread of its own, on a connection that ends with it: a request's
transaction is not touched, databases do not wait for one another, and one that does not answer at
all costs no more than ``BUDGET_SEC``.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, rendering, totals
from jobreaper.base import LATE_AFTER_BEATS
from jobreaper.db import fetch_within, in_words, is_lost
from jobreaper.heartbeat import own_connection
from jobreaper.states import LeaseState, Status
from jobreaper.tables import JobTable, job_tables
from jobreaper.totals import Sum
from jobreaper.worker import local_clock

# Prometheus gives up after ten seconds, unless told otherwise.
BUDGET_SEC: Final = 8.0
LOCK_TIMEOUT_SEC: Final = 1.0
STATEMENT_TIMEOUT_SEC: Final = 5.0

# Counted exactly up to here.
MOST_COUNTED: Final = 100_000
# In the planner's units, about 200 MB: an adopted table may have no index for its queue, and a
# scrape must not read the whole of a large one.
MOST_COST: Final = 25_000


class Standing(NamedTuple):
    """How one table stands. ``oldest_due_sec`` is ``None`` where nobody looked."""

    queued: int
    leases: Mapping[LeaseState, int]
    oldest_due_sec: float | None


@dataclass
class Reading:
    """What one database answered about ``tables``, and what went wrong."""

    tables: list[str]
    sums: list[Sum] | None = None
    standings: dict[str, Standing] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def sums_of_tables(self) -> list[Sum]:
        """The totals of job tables: not of passes, nor of what is no job table any more."""
        return [total for total in self.sums or () if total.table in self.tables]


class Asker(threading.Thread):
    """Asks one database."""

    def __init__(self, alias: str, tables: Sequence[JobTable]) -> None:
        super().__init__(name=f"jobreaper-metrics-{alias}", daemon=True)
        self.alias = alias
        self.tables = tables
        self.reading = Reading([table.name for table in tables], errors=["no answer in time"])

    def run(self) -> None:
        """Ask, and keep the answer in ``reading``."""
        try:
            self.reading = read(own_connection(self.alias), self.tables)
        # Whatever it is, the page holds other people's metrics too.
        except Exception as error:
            self.reading = replace(self.reading, errors=[in_words(error)])
        finally:
            connections.close_all()


class Askers:
    """Asks every database that holds a job table."""

    def __init__(self) -> None:
        self._asking: dict[str, Asker] = {}

    def ask(self) -> dict[str, Reading]:
        """Return the readings by database."""
        by_alias: dict[str, list[JobTable]] = defaultdict(list)
        for table in job_tables():
            by_alias[table.alias].append(table)
        deadline = local_clock() + BUDGET_SEC
        for alias, tables in by_alias.items():
            # While one hangs no second one is sent after it. An answer that came too late is old.
            if alias not in self._asking or not self._asking[alias].is_alive():
                self._asking[alias] = Asker(alias, tables)
                self._asking[alias].start()
        for alias in by_alias:
            self._asking[alias].join(max(0.0, deadline - local_clock()))
        return {alias: self._asking[alias].reading for alias in by_alias}


def read(connection: BaseDatabaseWrapper, tables: Sequence[JobTable]) -> Reading:
    """Read the totals and how ``tables`` stand. What goes wrong with one table is kept to it."""
    reading = Reading([table.name for table in tables])
    try:
        reading.sums = totals.read(connection)
    except Error as error:
        reading.errors.append(in_words(error))
    for table in tables:
        if is_lost(connection):
            break
        try:
            reading.standings[table.name] = _standing(connection, table)
        except Error as error:
            reading.errors.append(f"{table.name}: {table.in_words(error)}")
    return reading


def _standing(connection: BaseDatabaseWrapper, table: JobTable) -> Standing:
    queue = None if table.can_be_leased else _plan(connection, table, Status.QUEUED)
    look_at_queue = queue is None or not queue.reads_too_much
    [(queued, *by_state, oldest_due_sec)] = _fetch(
        connection,
        table.scrape_statement,
        {
            "most": MOST_COUNTED + 1,
            "late_sec": LATE_AFTER_BEATS * conf.settings().heartbeat_sec,
            "look_at_queue": look_at_queue,
        },
    )
    if queue is not None and queue.reads_too_much:
        queued = queue.rows
    elif queued > MOST_COUNTED:
        queued = max(queued, _plan(connection, table, Status.QUEUED).rows)
    running = sum(by_state)
    if running > MOST_COUNTED:
        share = max(running, _plan(connection, table, Status.PROCESSING).rows) / running
        by_state = [round(count * share) for count in by_state]
    leases = dict(zip(LeaseState, by_state, strict=True))
    return Standing(queued, leases, oldest_due_sec if look_at_queue else None)


class _Plan(NamedTuple):
    rows: int
    reads_too_much: bool


def _plan(connection: BaseDatabaseWrapper, table: JobTable, status: Status) -> _Plan:
    [(plans,)] = _fetch(connection, rendering.plan(table, status), {})
    plan = plans[0]["Plan"]
    reads_all = "Seq Scan" in str(plan)
    return _Plan(plan["Plan Rows"], reads_all and plan["Total Cost"] > MOST_COST)


def _fetch(
    connection: BaseDatabaseWrapper, statement: str, params: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    return fetch_within(
        connection,
        statement,
        params,
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=STATEMENT_TIMEOUT_SEC,
    )
