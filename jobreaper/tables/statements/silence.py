"""The statement that sees whether many workers have fallen silent together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.sql import SQL, Composable, Literal

from jobreaper import sql
from jobreaper.tables.shape import Shape
from jobreaper.tables.statements.parts import Parts, leased_parts, with_fragments
from jobreaper.tables.statements.reaper import reclaim_parts

# Two may well die together; that three do is worth a second look.
LEAST_TOGETHER: Final = 3
# One worker may well die with all that it holds.
LEAST_WORKERS: Final = 2

_IS_NEW: Final = SQL("seen_at > (SELECT known_until FROM grace)")


def shows_silence(table: Shape) -> bool:
    """Return whether the table shows which worker was last seen when."""
    return table.can_be_leased or {"last_heartbeat_at", "locked_by"} <= table.columns.keys()


def silence(tables: Sequence[Shape]) -> str:
    """Return the statement for those of ``tables`` that show silence, which are at least one."""
    seen = [_seen(table) for table in tables if shows_silence(table)]
    parts = {**tables[0].own_tables, "seen": SQL("\n UNION ALL\n").join(seen), **decision()}
    return sql.render("statements/silence", parts)


def decision(is_new: Composable = _IS_NEW) -> Parts:
    """Return the parts of the decision."""
    parts: Parts = {
        "is_new": is_new,
        "least_together": Literal(LEAST_TOGETHER),
        "least_workers": Literal(LEAST_WORKERS),
    }
    return with_fragments(parts, "recently", "workers_seen", "common_silence")


def _seen(table: Shape) -> Composable:
    if table.can_be_leased:
        return with_fragments(leased_parts(table), "recently", "seen_by_lease")["seen_by_lease"]
    return with_fragments(reclaim_parts(table), "recently", "seen_by_limit")["seen_by_limit"]
