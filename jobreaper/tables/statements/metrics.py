"""The statements of the metrics: the state of a table, how long its jobs wait, the totals."""

from __future__ import annotations

from typing import Final

from psycopg.sql import SQL, Composable, Identifier, Literal

from jobreaper import sql
from jobreaper.states import DEFAULT_QUEUE, Status
from jobreaper.tables.shape import Shape
from jobreaper.tables.statements.parts import (
    Parts,
    common_parts,
    has_status,
    leased_parts,
    with_fragments,
)
from jobreaper.tables.statements.reaper import reclaim_parts

# How many jobs in line are searched for the oldest due one.
MOST_IN_LINE: Final = 10_000
# So many queues have a number of their own.
MOST_QUEUES: Final = 50

_NO_QUEUES: Final = SQL("SELECT NULL::text AS queue, 0 AS number WHERE false")
_OF_QUEUES: Final = {
    "default_queue": Literal(DEFAULT_QUEUE),
    "most_queues": Literal(MOST_QUEUES),
}


def totals(name: str, **overriding: Composable) -> str:
    """Return a statement for the totals, which belong to no single table."""
    return sql.render(f"statements/{name}", with_fragments(overriding, "labelled_totals"))


def scrape(table: Shape) -> str:
    """Return the statement that reads the state of a table."""
    if table.can_be_leased:
        parts = with_fragments(leased_parts(table), "lease_state")
        running: Composable = SQL("{} AS job").format(parts["table"])
        by_lease: Composable = SQL("ORDER BY job.{}").format(parts["lease_expires_at"])
    else:
        parts = reclaim_parts(table)
        parts["lease_state"] = sql.compose("fragments/state_by_limit", parts)
        running = SQL("{} AS job LEFT JOIN ({}) AS limits ON {}").format(
            parts["table"], parts["limits"], parts["limit_of_job"]
        )
        by_lease = SQL("")
    parts |= {"running": running, "by_lease": by_lease, "by_queue": _NO_QUEUES}
    parts = _with_line(table, parts)
    if "queue" in table.extras:
        own = {
            "queue": Identifier(str(table.extras["queue"].column)),
            "most": Literal(MOST_IN_LINE),
        }
        parts["by_queue"] = sql.compose("statements/by_queue", {**parts, **own, **_OF_QUEUES})
    return sql.render("statements/scrape", parts)


def oldest_due_age(table: Shape) -> str:
    """Return the statement that reads how long the oldest due job of a table with leases has
    waited, by the rule of the metrics.
    """
    return sql.render("statements/oldest_due_age", _with_line(table, leased_parts(table)))


def plan(table: Shape, status: Status) -> str:
    """Return the statement that asks the planner how many jobs have ``status``."""
    parts = {**common_parts(table), "has_status": has_status(table, status)}
    return sql.render("statements/plan", parts)


def _with_line(table: Shape, parts: Parts) -> Parts:
    """Add the order of the queued jobs, and since when the due ones have waited."""
    in_line: Composable = SQL("")
    ranges: list[Composable] = [SQL("true")]
    if "next_earliest_run_at" in table.columns:
        time = SQL("job.{}").format(parts["next_earliest_run_at"])
        keys = [SQL("job.{}").format(Identifier(column)) for column in table.key_columns]
        in_line = SQL("ORDER BY {}").format(SQL(", ").join([time, *keys]))
        ranges = [SQL("{} <= statement_timestamp()").format(time), SQL("{} IS NULL").format(time)]
    since = SQL(
        "(SELECT {since} FROM {table} AS job WHERE {is_queued} AND {range} {in_line} LIMIT {most})"
    )
    of_line = {
        **parts,
        "since": waiting_since(table),
        "in_line": in_line,
        "most": Literal(MOST_IN_LINE),
    }
    due = SQL("\n UNION ALL\n").join([since.format(**of_line, range=each) for each in ranges])
    return {**parts, "in_line": in_line, "due": due}


def waiting_since(table: Shape) -> Composable:
    """Return since when ``job`` could have been claimed: the latest of when it was due, when it was
    created, and when its last attempt ended. A released job keeps the time of its first attempt.
    """
    times = [
        table.columns[part]
        for part in ("next_earliest_run_at", "last_heartbeat_at")
        if part in table.columns
    ]
    times += [str(own.column) for name, own in table.extras.items() if name == "created_at"]
    columns = [SQL("job.{}").format(Identifier(column)) for column in times]
    return SQL("GREATEST(NULL::timestamptz, {})").format(SQL(", ").join(columns))
