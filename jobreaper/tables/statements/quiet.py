"""The statement that sees whether a pass has anything to do."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.sql import SQL, Composable, Identifier

from jobreaper import sql
from jobreaper.tables.shape import Shape
from jobreaper.tables.statements.parts import common_parts
from jobreaper.tables.statements.reaper import dry_run


def clocks() -> str:
    """Return the statement that compares the database's clock with the machine's."""
    last_clocks = sql.compose("fragments/last_clocks", {})
    return sql.render("statements/clocks", {"last_clocks": last_clocks})


def quiet(tables: Sequence[Shape], *, has_ttl: bool) -> str:
    """Return the statement for ``tables``, which are at least one. ``has_ttl`` says whether a stage
    has a time to live.
    """
    due = [_any_due(table, has_ttl) for table in tables]
    parts = {
        **tables[0].own_tables,
        "server_back": sql.compose("statements/server_back", tables[0].own_tables),
        "last_clocks": sql.compose("fragments/last_clocks", tables[0].own_tables),
        "are_due": SQL(",\n").join(due),
    }
    return sql.render("statements/quiet", parts)


def _any_due(table: Shape, has_ttl: bool) -> Composable:
    if table.can_be_leased and not has_ttl and table.ttl_sec is None:
        columns = [SQL("job.{}").format(Identifier(name)) for name in table.columns.values()]
        parts = {**common_parts(table), "all_columns": SQL(", ").join(columns)}
        return sql.compose("fragments/any_expired", parts)
    return SQL("EXISTS ({})").format(SQL(dry_run(table)))
