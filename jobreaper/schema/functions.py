"""The protocol in the database: functions for workers in other languages, and views.

They are rendered from the same ``.sql`` files that Python sends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import DataError, IntegrityError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import Identifier
from psycopg.sql import Literal as SqlLiteral

from jobreaper import conf, sql
from jobreaper.db import fetch
from jobreaper.schema.objects import MARK, Installed
from jobreaper.schema.place import first_schema, place_of
from jobreaper.schema.rendering import POLICIES, Maker
from jobreaper.schema.workers import functions_of_workers
from jobreaper.tables.jobtable import JobTable


def policies(connection: BaseDatabaseWrapper) -> Installed:
    """Return ``jobreaper_policies()``, rendered from the current settings."""
    identifier = Identifier(first_schema(connection), POLICIES)
    parts = {
        "function": identifier,
        "policy_columns": sql.compose("fragments/policy_columns", {}),
        "policies_json": SqlLiteral(conf.settings().policies_json),
    }
    return Installed("FUNCTION", identifier, sql.plain("functions/policies", parts), "()")


def of_package(connection: BaseDatabaseWrapper) -> list[Installed]:
    """Return the functions that belong to no one table."""
    return [policies(connection), *functions_of_workers(place_of(None, connection))]


def of_table(table: JobTable, connection: BaseDatabaseWrapper) -> list[Installed]:
    """Return the functions and views of one job table, in the order in which to create them."""
    maker = Maker(table, place_of(table, connection), connection.timezone_name)
    return [*maker.functions(), *maker.views()]


@dataclass(frozen=True)
class Drift:
    """A function or view in the database that differs from a newly rendered one."""

    name: str
    problem: str
    # What corrects it, if installing it again does not.
    remedy: str | None = None


def drifted(
    connection: BaseDatabaseWrapper, tables: Iterable[JobTable], elsewhere: Iterable[JobTable] = ()
) -> list[Drift]:
    """Return what differs from a newly rendered one, is missing although others of its table or of
    the package exist, or belongs to no table, not even to one ``elsewhere``, whose database may be
    this one with another alias.
    """
    groups = [of_package(connection), *(of_table(table, connection) for table in tables)]
    known = {made.name for table in elsewhere for made in of_table(table, connection)}
    found = [row for row in installed(connection) if row[0] not in known]
    names = {name for name, *_ in found}
    expected = {made.name: made for group in groups for made in group}
    drifts = [
        Drift(made.name, "is missing")
        for group in groups
        for made in group
        if made.name not in names and names & {other.name for other in group}
    ]
    for name, dropping, comment, *as_it_is in found:
        if name not in expected:
            remedy = f"Unless another project uses it: DROP {dropping};"
            drifts.append(Drift(name, "belongs to no job table", remedy))
        elif comment != expected[name].comment:
            drifts.append(Drift(name, "differs from this version or its settings"))
        elif expected[name].was_edited(*as_it_is):
            drifts.append(Drift(name, "was changed by hand"))
    return sorted(drifts, key=lambda drift: drift.name)


class Column(NamedTuple):
    """A column in the database. ``type`` is the base type of a domain, ``own_type`` the domain."""

    type: str
    own_type: str
    is_domain_of_enum: bool
    may_be_null: bool
    max_length: int | None


class TableAsItIs(NamedTuple):
    """A table as a session sees it."""

    columns: Mapping[str, Column]
    hides_rows: bool
    role: str


def table_as_it_is(table: JobTable, connection: BaseDatabaseWrapper) -> TableAsItIs | None:
    """Return the table as it is in the database, or ``None`` if the role cannot find it."""
    name = Identifier(*table.name_parts).as_string(None)
    schema = Identifier(*table.name_parts[:-1]).as_string(None) if table.name_parts[1:] else None
    params = {"table": name, "schema": schema}
    parts = {"hides_rows": sql.compose("fragments/hides_rows", {})}
    rows = fetch(connection, sql.render("statements/table_as_it_is", parts), params)
    if not rows:
        return None
    [(columns, *rest)] = rows
    by_name = {name: Column(**column) for name, column in json.loads(columns).items()}
    return TableAsItIs(by_name, *rest)


def takes(connection: BaseDatabaseWrapper, column: Column, word: str) -> bool:
    """Return whether a column accepts a word: an enum or a number does not accept every word."""
    if column.max_length is not None and len(word) > column.max_length:
        return False
    try:
        with transaction.atomic(using=connection.alias):
            fetch(connection, f"SELECT %(word)s::text::{column.own_type}", {"word": word})
    except (DataError, IntegrityError):
        return False
    return True


def installed(connection: BaseDatabaseWrapper) -> list[tuple[Any, ...]]:
    """Return the rows of ``statements/installed``."""
    return fetch(connection, sql.render("statements/installed"), {"mark": f"{MARK}%"})
