"""Rows that row-level security hides from a role. Nothing that misses them raises an error."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import Identifier

from jobreaper import sql
from jobreaper.db import fetch
from jobreaper.tables.jobtable import JobTable

# Of a table, for a role. In PL/pgSQL too, as format() takes it.
HIDDEN: Final = (
    "row-level security hides rows of %s from the role '%s': give the role BYPASSRLS or a policy "
    "that shows it all rows, see Rights in docs/queue.md"
)


def hidden(connection: BaseDatabaseWrapper, tables: Iterable[JobTable]) -> dict[str, str]:
    """Return those of these tables, by name, of which rows may be hidden from this connection's
    role, each with the reason and what to do about it.
    """
    names = {Identifier(*table.name_parts).as_string(None): table.name for table in tables}
    return {
        names[name]: HIDDEN % (names[name], role)
        for name, role in fetch(connection, _statement(), {"tables": list(names)})
    }


@cache
def _statement() -> str:
    return sql.render("statements/hidden", {"hides_rows": sql.compose("fragments/hides_rows", {})})
