"""The statements of the overview: counts by status, and the jobs that stand still."""

from __future__ import annotations

from psycopg.sql import SQL, Composable, Identifier

from jobreaper import sql
from jobreaper.states import Status
from jobreaper.tables.shape import Shape
from jobreaper.tables.statements.metrics import waiting_since
from jobreaper.tables.statements.parts import (
    Parts,
    common_parts,
    has_status,
    key_as_read,
    leased_parts,
)


def count_of_status(table: Shape, status: Status) -> str:
    """Return the statement that counts the jobs of a status, up to a limit."""
    parts = {**common_parts(table), "has_status": has_status(table, status)}
    return sql.render("statements/count_of_status", parts)


def stuck(table: Shape) -> str:
    """Return the statement that finds the jobs of a table with leases that stand still."""
    parts = _with_line(table)
    key = SQL("job.{}").format(Identifier(table.key_columns[0]))
    parts |= {
        "key_as_read": key_as_read(table, key),
        "waiting_since": waiting_since(table),
    }
    return sql.render("statements/stuck", parts)


def stages_in_line(table: Shape) -> str:
    """Return the statement that counts the jobs next in line by stage."""
    parts = _with_line(table)
    parts["stage_of_row"] = SQL("job.{}").format(parts["stage"])
    return sql.render("statements/stages_in_line", parts)


def _with_line(table: Shape) -> Parts:
    parts = leased_parts(table)
    key: Composable = SQL("job.{}").format(Identifier(table.key_columns[0]))
    time = SQL("job.{}").format(parts["next_earliest_run_at"])
    parts["in_line"] = SQL("{}, {}").format(time, key)
    return parts
