"""Where the functions in the database find what they name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import SQL, Composable, Identifier

from jobreaper import sql
from jobreaper.db import fetch
from jobreaper.tables.jobtable import JobTable


class Place(NamedTuple):
    """Where a session finds what the functions of a table name."""

    # The first schema of its search_path: functions and views are created there.
    first: str
    # The schemas of tables by name, if the name does not include one.
    schemas: Mapping[str, str]
    # The schemas in which types and triggers of the table make a function look names up.
    path: Sequence[str]

    @property
    def own_tables(self) -> dict[str, Identifier]:
        """The names of the package's own tables in a statement."""
        return {name: Identifier(self.schemas[name], name) for name in sql.OWN_TABLES}

    @property
    def search_path(self) -> Composable:
        """What a function looks names up in. Where others may create, there may be a better match
        for what it calls.
        """
        return SQL(", ").join(map(Identifier, ["pg_catalog", *self.path, "pg_temp"]))


def first_schema(connection: BaseDatabaseWrapper) -> str:
    """Return the schema in which a session creates what it gives no schema."""
    [(schema,)] = fetch(connection, "SELECT coalesce(current_schema(), 'public')", {})
    return str(schema)


def place_of(table: JobTable | None, connection: BaseDatabaseWrapper) -> Place:
    """Return where a session finds what the functions of ``table`` name, or those of no table."""
    first = first_schema(connection)
    tables = {name: Identifier(name).as_string(None) for name in sql.OWN_TABLES}
    if table is not None:
        tables[table.name] = table.identifier.as_string(None)
    params = {
        "first": first,
        "names": list(tables),
        "tables": list(tables.values()),
        "table": table and table.identifier.as_string(None),
        "keys": list(table.key_columns) if table else [],
        "columns": list(table.columns.values()) if table else [],
    }
    [(found, path)] = fetch(connection, sql.render("statements/place"), params)
    schemas = json.loads(found)
    if table and table.name_parts[1:]:
        del schemas[table.name]
    return Place(first, schemas, path)
