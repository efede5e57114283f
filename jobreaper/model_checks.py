"""System checks of the models of job tables, and of their databases: what Django allows and the
protocol does not support.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import Identifier

from jobreaper import sql
from jobreaper.base import LeasedJob
from jobreaper.db import fetch, moves_sessions, server_encoding
from jobreaper.findings import check, database_check, warning
from jobreaper.tables import JobTable, job_tables, owner_of


@check
def check_models() -> Iterator[CheckMessage]:
    """Report W020 (a child whose jobs are in its parent's table) and W021 (a manager that hides
    rows, but not from claims).
    """
    for model in apps.get_models():
        if issubclass(model, LeasedJob) and not model._meta.proxy:
            yield from _check_owner(model)
    for table in job_tables():
        yield from _check_managers(table.model)


def _check_owner(model: type[LeasedJob]) -> Iterator[CheckMessage]:
    owner = owner_of(model)
    if owner is not model:
        yield warning(
            "W020",
            f"{model._meta.label} has no job table of its own: its leases are in that of "
            f"{owner._meta.label}, whose claims take the jobs of every child.",
            f"Claim {owner._meta.object_name}, and name it in tasks; or make it abstract, so "
            f"that each child has a table.",
            model,
        )


def _check_managers(model: type[models.Model]) -> Iterator[CheckMessage]:
    for manager in {model._default_manager, model._base_manager}:
        if _hides_rows(manager):
            yield warning(
                "W021",
                f"{model._meta.label}.{manager.name} leaves rows out, and claims, passes and "
                "dispatches do not: hidden jobs run.",
                "Cancel a job when you hide it, or put the filter into another manager.",
                model,
            )


def _hides_rows(manager: models.Manager[Any]) -> bool:
    try:
        query = manager.get_queryset().query
    # The manager is not ours, and may need a request, a tenant or a database.
    except Exception:
        return False
    return bool(query.where or query.distinct or query.is_sliced or query.combinator)


@database_check
def check_encodings(databases: Sequence[str] | None) -> Iterator[CheckMessage]:
    """Report W022: a database of jobs whose encoding does not support every character."""
    for connection, _ in _asked(databases):
        connection.ensure_connection()
        encoding = server_encoding(connection)
        if encoding != "UTF8":
            yield warning(
                "W022",
                f"The encoding of the database {connection.alias!r} is {encoding}: no job can "
                "have characters that it lacks, and reasons of failures have escapes for them.",
                "Move the jobs to a database in UTF8.",
            )


@check
def check_sessions() -> Iterator[CheckMessage]:
    """Report W024: sessions that a program moves from schema to schema, as one of tenants does."""
    return (
        warning(
            "W024",
            f"Sessions of the database {alias!r} are moved from schema to schema by "
            f"{type(connections[alias]).__module__}, and a reaper, worker or dispatcher looks only "
            "in the schema in which it was started: nobody reaps what is in another one.",
            "Run one of each for every schema that has job tables, or keep the job tables in the "
            "schema that all tenants share.",
        )
        for alias in sorted({table.alias for table in job_tables() if not table.name_parts[1:]})
        if moves_sessions(connections[alias])
    )


@database_check
def check_schemas(databases: Sequence[str] | None) -> Iterator[CheckMessage]:
    """Report W023: roles that can put functions in the way of what the reaper calls."""
    return (
        warning(
            "W023",
            f"{roles} may create functions in the schema {schema!r} of the database "
            f"{connection.alias!r}: one with the name of a function that jobreaper calls would run "
            "with the rights of the reaper.",
            f"REVOKE CREATE ON SCHEMA {schema} FROM {roles}.",
        )
        for connection, tables in _asked(databases)
        for schema, roles in fetch(
            connection,
            sql.render("statements/schema_creators"),
            {
                "schemas": [table.name_parts[0] for table in tables if table.name_parts[1:]],
                "tables": [Identifier(*table.name_parts).as_string(None) for table in tables],
            },
        )
    )


def _asked(
    databases: Sequence[str] | None,
) -> Iterator[tuple[BaseDatabaseWrapper, list[JobTable]]]:
    """Yield the databases to be asked that hold job tables, with these."""
    tables = job_tables()
    for alias in sorted({table.alias for table in tables} & {*(databases or ())}):
        if connections[alias].vendor == "postgresql":
            yield connections[alias], [table for table in tables if table.alias == alias]
