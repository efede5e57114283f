"""How a job table stands: how many jobs of each status and lease, and the age of the oldest ones.

Nothing here reads more than a bounded part of a table: an adopted one may have no index for its
queue, and a finished job none at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf
from jobreaper.base import LATE_AFTER_BEATS
from jobreaper.explaining.facts import ask
from jobreaper.states import DEFAULT_QUEUE, LeaseState, Status
from jobreaper.tables import JobTable, statements

# Rows are counted exactly up to this number.
MOST_COUNTED: Final = 100_000
# In the planner's units, about 200 MB: an adopted table may have no index for its queue, and a
# scrape must not read the whole of a large one.
MOST_COST: Final = 25_000
# The same for a page that counts several statuses of several tables, about 20 MB each.
MOST_COST_OF_A_COUNT: Final = 2_500
MOST_COUNTED_FOR_PEOPLE: Final = 10_000


class Standing(NamedTuple):
    """The state of one table. ``oldest_due_sec`` is ``None`` if it was not queried. ``queues`` is
    how many queued jobs each queue has, empty if the table has no queues.
    """

    queued: int
    leases: Mapping[LeaseState, int]
    oldest_due_sec: float | None
    queues: Mapping[str, int]


class Count(NamedTuple):
    """A number of jobs, and whether it is an estimate."""

    number: int
    is_rough: bool = False

    def __str__(self) -> str:
        return f"~{self.number:,}" if self.is_rough else f"{self.number:,}"


@dataclass(frozen=True)
class TableNow:
    """A job table for people: its standing, the ended jobs, and what went wrong with reading it."""

    table: JobTable
    standing: Standing | None
    ended: Mapping[Status, Count]
    error: str | None = None

    @property
    def running(self) -> int:
        """The number of running jobs, whatever their lease."""
        return sum(self.standing.leases.values()) if self.standing else 0

    @property
    def stuck(self) -> int:
        """The number of running jobs without a valid lease."""
        leases = self.standing.leases if self.standing else {}
        return leases.get(LeaseState.EXPIRED, 0) + leases.get(LeaseState.NONE, 0)


def table_now(connection: BaseDatabaseWrapper, table: JobTable) -> TableNow:
    """Return how a table stands. A database error is kept to it."""
    try:
        standing = standing_of(connection, table, most=MOST_COUNTED_FOR_PEOPLE)
        ended = {
            status: count_of(connection, table, status)
            for status in (Status.SUCCESS, Status.FAILED, Status.CANCELLED)
            if status in table.words
        }
    except Error as error:
        return TableNow(table, None, {}, table.in_words(error))
    return TableNow(table, standing, ended)


def standing_of(
    connection: BaseDatabaseWrapper, table: JobTable, most: int | None = None
) -> Standing:
    """Return the state of a table, for the metrics and for people: exact up to ``most`` jobs, by
    default ``MOST_COUNTED``, then estimated.
    """
    most = MOST_COUNTED if most is None else most
    queue = None if table.can_be_leased else _plan(connection, table, Status.QUEUED)
    look_at_queue = queue is None or not queue.reads_too_much
    [(queued, *by_state, oldest_due_sec, by_queue)] = ask(
        connection,
        table.scrape_statement,
        {
            "most": most + 1,
            "late_sec": LATE_AFTER_BEATS * conf.settings().heartbeat_sec,
            "look_at_queue": look_at_queue,
        },
    )
    if queue is not None and queue.reads_too_much:
        queued = queue.rows
    elif queued > most:
        queued = max(queued, _plan(connection, table, Status.QUEUED).rows)
    running = sum(by_state)
    if running > most:
        share = max(running, _plan(connection, table, Status.PROCESSING).rows) / running
        by_state = [round(count * share) for count in by_state]
    leases = dict(zip(LeaseState, by_state, strict=True))
    oldest_due_sec = oldest_due_sec if look_at_queue else None
    queues = _queues(by_queue, queued) if "queue" in table.extras else {}
    return Standing(queued, leases, oldest_due_sec, queues)


def _queues(by_queue: Any, queued: int) -> dict[str, int]:
    """Return the number of queued jobs by queue, from that among the next in line."""
    empty = dict.fromkeys([DEFAULT_QUEUE, *conf.settings().queues], 0)
    seen: dict[str, int] = json.loads(by_queue) if isinstance(by_queue, str) else by_queue or {}
    share = queued / max(1, sum(seen.values()))
    return empty | {queue: round(number * share) for queue, number in seen.items()}


def count_of(connection: BaseDatabaseWrapper, table: JobTable, status: Status) -> Count:
    """Return how many jobs have a status: counted if that is cheap, and else as the planner
    estimates it.
    """
    plan = _plan(connection, table, status)
    if plan.cost > MOST_COST_OF_A_COUNT:
        return Count(plan.rows, is_rough=True)
    statement = statements.count_of_status(table, status)
    [(number,)] = ask(connection, statement, {"most": MOST_COUNTED_FOR_PEOPLE + 1})
    if number > MOST_COUNTED_FOR_PEOPLE:
        return Count(max(plan.rows, number), is_rough=True)
    return Count(number)


class _Plan(NamedTuple):
    rows: int
    reads_too_much: bool
    cost: float


def _plan(connection: BaseDatabaseWrapper, table: JobTable, status: Status) -> _Plan:
    [(plans,)] = ask(connection, statements.plan(table, status), {})
    plan = plans[0]["Plan"]
    reads_all = "Seq Scan" in str(plan)
    cost = plan["Total Cost"]
    return _Plan(plan["Plan Rows"], reads_all and cost > MOST_COST, cost)
