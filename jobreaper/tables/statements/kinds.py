"""The next due jobs behind a long line of others, found by the index by kind.

A claim reads the line in its order, which is the least work as long as most jobs in line are for
it. It looks for a moment only. If others stand in front, such as paused jobs, another statement
finds the kinds that are wanted, and reads only these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from psycopg.sql import SQL, Composable, Composed, Literal

from jobreaper import sql
from jobreaper.tables.shape import Shape
from jobreaper.tables.statements.parts import Parts, all_of, with_fragments

# Enough for a few thousand jobs. What comes then takes about a millisecond.
LOOK_MS: Final = 2
# How many of the first jobs of a kind others may be claiming at this moment.
SPARE: Final = 100

# As the index has it: another index could not serve this order, whatever the planner expects.
_RUN_AT: Final = SQL("coalesce(job.{next_earliest_run_at}, 'infinity'::timestamptz)")
_IS_DUE: Final = (
    SQL("{run_at} <= statement_timestamp()"),
    # Nothing is later, so this is a range of the index with an order, as `=` would not be.
    SQL(
        "{run_at} >= 'infinity'\n"
        # IS NULL, in words that no index serves.
        "AND coalesce(job.{next_earliest_run_at}, '-infinity') = '-infinity'"
    ),
)


def look(table: Shape, parts: Parts) -> Mapping[str, Composable | None]:
    """Return the parts of a claim that looks along the line for a moment only, if there is another
    way to find the next jobs.
    """
    if not table.is_indexed_by_kind:
        return to_the_end(parts)
    parts = with_fragments(
        {**parts, "look_ms": Literal(LOOK_MS)}, "looking", "wanted_or_late", "and_is_wanted"
    )
    names = ("looking", "wanted_or_late", "and_is_wanted")
    return {**{name: parts[name] for name in names}, "where_wanted": SQL("WHERE is_wanted")}


def to_the_end(parts: Parts) -> Mapping[str, Composable | None]:
    """Return the parts of a statement that looks along the line as far as it must."""
    without = {"looking": None, "where_wanted": None, "and_is_wanted": SQL("")}
    return {**without, "wanted_or_late": parts["wanted"]}


def due_by_kind(table: Shape, parts: Parts, *, wanted_kind: Composable) -> Composed:
    """Return the next due jobs by their kinds. ``wanted_kind`` is a condition on the columns of a
    kind.
    """
    columns = {name: _of_kind(table, name, parts) for name in table.kind_parts}
    names = [parts[name] for name in columns]
    is_of_kind = [SQL("{} = kinds.{}").format(columns[name], parts[name]) for name in columns]
    parts = {
        **parts,
        "run_at": _RUN_AT.format(**parts),
        "wanted_kind": wanted_kind,
        "spare": Literal(SPARE),
        "kind": SQL(", ").join(columns.values()),
        "kind_columns": SQL(",\n").join(
            SQL("{} AS {}").format(columns[name], parts[name]) for name in columns
        ),
        "kind_of_present": SQL(", ").join(SQL("present.{}").format(name) for name in names),
        "is_of_kind": all_of(is_of_kind),
    }
    has_priority = "priority" in columns
    priority = parts["priority"] if has_priority else SQL("")
    parts["by_priority_of_kind"] = (
        SQL("kinds.{} DESC, ").format(priority) if has_priority else SQL("")
    )
    parts["of_kind"] = SQL("\n UNION ALL\n").join(
        sql.compose("fragments/due_of_kind", {**parts, "is_due": each.format(**parts)})
        for each in _IS_DUE
    )
    return sql.compose("fragments/due_by_kind", parts)


def _of_kind(table: Shape, name: str, parts: Parts) -> Composable:
    """Return a column of a kind as its index has it: a text without NULL."""
    pattern = "job.{}" if name == "priority" else "coalesce(job.{}, '')"
    return SQL(pattern).format(parts[name])
