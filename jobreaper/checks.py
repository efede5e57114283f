"""System checks: ``manage.py check`` says what is wrong before a job is lost to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from django.apps.config import AppConfig
from django.core import checks
from django.db import connections

from jobreaper import conf, installed
from jobreaper.tables import JobTable, job_tables

DOCS: Final = "See docs/checks.md#"


def register() -> None:
    """Register every check; called once from ``AppConfig.ready()``."""
    checks.register(check_settings, "jobreaper")
    checks.register(check_databases, "jobreaper")
    checks.register(check_installed_sql, checks.Tags.database)


def check_settings(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Report E001 (unknown key), E002 (bad value), E003 and W001 (beats too far apart)."""
    return [
        (checks.Error if problem.is_error else checks.Warning)(
            problem.message,
            hint=f"{problem.hint} {DOCS}{problem.id.lower()}",
            id=f"jobreaper.{problem.id}",
        )
        for problem in conf.problems()
    ]


def check_databases(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Report E004: a job table is not in PostgreSQL."""
    return [message for table in job_tables() for message in _check_database(table)]


def check_installed_sql(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Report W010: SQL functions or views in the database differ from a fresh render."""
    messages: list[checks.CheckMessage] = []
    for alias in databases or ():
        connection = connections[alias]
        if connection.vendor != "postgresql":
            continue
        tables = [table for table in job_tables() if table.alias == alias]
        for name in installed.drifted(connection, tables):
            messages.append(
                checks.Warning(
                    f"{name} in the database {alias!r} differs from this version or its settings.",
                    hint=f"Run `manage.py reaper_sql --install --database {alias}`. {DOCS}w010",
                    id="jobreaper.W010",
                )
            )
    return messages


def _check_database(table: JobTable) -> Iterator[checks.CheckMessage]:
    vendor = connections[table.alias].vendor
    if vendor != "postgresql":
        yield checks.Error(
            f"Job table {table.name!r} is in the database {table.alias!r}, which is {vendor}.",
            hint=f"Jobs are kept in PostgreSQL only: route the table there. {DOCS}e004",
            obj=table.model,
            id="jobreaper.E004",
        )
