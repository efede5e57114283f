"""Queries the state of the job tables from the databases, in limited time.

A thread queries each database, on a connection that ends with the thread. So a request's
transaction is not affected, databases do not wait for one another, and one that does not answer
costs at most ``BUDGET_SEC``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper.db import in_words, is_lost
from jobreaper.db.own import own_connection
from jobreaper.identity import local_clock
from jobreaper.models import Job
from jobreaper.overview.tables import Standing, standing_of
from jobreaper.presence import standing
from jobreaper.reaper import totals
from jobreaper.reaper.totals import Sum
from jobreaper.schedule import standing as schedules
from jobreaper.states import WorkerKind, WorkerState
from jobreaper.tables import JobTable, by_alias, refused, table_of

# By default, Prometheus gives up after ten seconds.
BUDGET_SEC: Final = 8.0


@dataclass
class Reading:
    """What one database returned for ``tables``, and what went wrong."""

    tables: list[str]
    sums: list[Sum] | None = None
    standings: dict[str, Standing] = field(default_factory=dict)
    refused: Mapping[str, int] | None = None
    workers: Mapping[tuple[WorkerKind, WorkerState], int] | None = None
    # Of the database that has them.
    schedules: Sequence[schedules.Standing] = ()
    errors: list[str] = field(default_factory=list)

    @property
    def sums_of_tables(self) -> list[Sum]:
        """The totals of job tables: not of passes, nor of what is no job table any more."""
        return [total for total in self.sums or () if total.table in self.tables]


class Asker(threading.Thread):
    """Queries one database."""

    def __init__(self, alias: str, tables: Sequence[JobTable]) -> None:
        super().__init__(name=f"jobreaper-metrics-{alias}", daemon=True)
        self.alias = alias
        self.tables = tables
        self.reading = Reading([table.name for table in tables], errors=["no answer in time"])

    def run(self) -> None:
        """Query, and store the result in ``reading``."""
        try:
            self.reading = read(own_connection(self.alias), self.tables)
        # Whatever went wrong, the page contains other metrics too.
        except Exception as error:
            self.reading = replace(self.reading, errors=[in_words(error)])
        finally:
            connections.close_all()


class Askers:
    """Queries every database that contains a job table."""

    def __init__(self) -> None:
        self._asking: dict[str, Asker] = {}

    def ask(self) -> dict[str, Reading]:
        """Return the readings by database."""
        found = by_alias()
        deadline = local_clock() + BUDGET_SEC
        for alias, tables in found.items():
            # While one query hangs, no second one is sent. An answer that comes too late is old.
            if alias not in self._asking or not self._asking[alias].is_alive():
                self._asking[alias] = Asker(alias, tables)
                self._asking[alias].start()
        for alias in found:
            self._asking[alias].join(max(0.0, deadline - local_clock()))
        return {alias: self._asking[alias].reading for alias in found}


def read(connection: BaseDatabaseWrapper, tables: Sequence[JobTable]) -> Reading:
    """Read the totals and how ``tables`` stand. What goes wrong with one table is kept to it."""
    reading = Reading([table.name for table in tables])
    try:
        reading.sums = totals.read(connection)
        reading.refused = refused.count(connection)
        reading.workers = standing.count(connection)
        if connection.alias == table_of(Job).alias:
            reading.schedules = schedules.read(connection)
    except Error as error:
        reading.errors.append(in_words(error))
    for table in tables:
        if is_lost(connection):
            break
        try:
            reading.standings[table.name] = standing_of(connection, table)
        except Error as error:
            reading.errors.append(f"{table.name}: {table.in_words(error)}")
    return reading
