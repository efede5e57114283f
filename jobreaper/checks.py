"""System checks: ``manage.py check`` reports a problem before it costs a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.core.checks import CheckMessage
from django.db import connections, router

from jobreaper import conf
from jobreaper.db import postgresql_among
from jobreaper.findings import check, database_check, error, warning
from jobreaper.models import (
    JobEvent,
    NamedStage,
    Pause,
    ReaperPass,
    RefusedRow,
    Schedule,
    Total,
    Worker,
)
from jobreaper.schema import functions
from jobreaper.tables import JobTable, by_alias, job_tables


@check
def check_settings() -> Iterator[CheckMessage]:
    """Report E001 (unknown key), E002 (invalid value), E003 and W001 (heartbeats too far apart)."""
    for problem in conf.problems():
        report = error if problem.is_error else warning
        yield report(problem.id, problem.message, problem.hint)


@check
def check_databases() -> Iterator[CheckMessage]:
    """Report E004 (a job table is not in PostgreSQL), E007 (its database never commits) and W017
    (routers keep from it what has to be beside it).
    """
    for table in job_tables():
        yield from _check_database(table)
    records = [JobEvent, Pause, ReaperPass, RefusedRow, Schedule, Total, NamedStage, Worker]
    for alias, tables in sorted(by_alias().items()):
        kept_out = [
            model._meta.db_table
            for model in records
            if not router.allow_migrate_model(alias, model)
        ]
        if kept_out:
            yield warning(
                "W017",
                f"The routers keep {', '.join(kept_out)} out of the database {alias!r}, which "
                f"holds {', '.join(table.name for table in tables)}: no job of it can be "
                "claimed or reaped without them.",
                "Let allow_migrate() allow the app 'jobreaper' there, and run `manage.py "
                f"migrate --database {alias}`; or create the tables by hand.",
            )
        if not connections[alias].settings_dict["AUTOCOMMIT"]:
            yield error(
                "E007",
                f"DATABASES[{alias!r}] holds job tables and has AUTOCOMMIT off: nothing "
                "would commit what is written to them.",
                "Leave AUTOCOMMIT on.",
            )


@database_check
def check_installed_sql(databases: Sequence[str] | None) -> Iterator[CheckMessage]:
    """Report W010: SQL functions or views in the database differ from newly rendered ones."""
    tables = job_tables()
    for connection in postgresql_among(databases):
        here = [table for table in tables if table.alias == connection.alias]
        elsewhere = [table for table in tables if table not in here]
        for drift in functions.drifted(connection, here, elsewhere):
            remedy = f"Run `manage.py reaper_sql --install --database {connection.alias}`."
            yield warning(
                "W010",
                f"{drift.name} in the database {connection.alias!r} {drift.problem}.",
                drift.remedy or remedy,
            )


def _check_database(table: JobTable) -> Iterator[CheckMessage]:
    vendor = connections[table.alias].vendor
    if vendor != "postgresql":
        yield error(
            "E004",
            f"Job table {table.name!r} is in the database {table.alias!r}, which is {vendor}.",
            "Jobs are kept in PostgreSQL only: route the table there.",
            table.model,
        )
