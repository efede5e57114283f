"""System checks: ``manage.py check`` says what is wrong before a job is lost to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from django.apps.config import AppConfig
from django.core import checks
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, installed
from jobreaper.base import LeasedJob
from jobreaper.rendering import LONGEST_TEXT
from jobreaper.states import Status
from jobreaper.tables import JobTable, job_tables

DOCS: Final = "See docs/checks.md#"

# Set to NULL when a job goes back to the queue.
CLEARED_TIMES: Final = (
    "claimed_at",
    "lease_expires_at",
    "deadline_at",
    "dispatched_at",
    "finished_at",
)
TIMES: Final = (*CLEARED_TIMES, "last_heartbeat_at", "next_earliest_run_at", "updated_at")
TIME_TYPE: Final = "timestamp with time zone"

# Emptied together with those times, and written as text.
CLEARED_TEXTS: Final = ("locked_by", "fail_code", "fail_reason")
# The host's name as Linux limits it, the process's number and the token of its start.
LONGEST_WORKER: Final = len(f"{'h' * 64}:{2**22}:{'0' * 8}")

# What it costs an adopted table to have no column for a part: whoever reclaims its jobs, ...
COSTS_TO_RECLAIM: Final = {
    "stage": "one ttl and one policy for all its jobs",
    "locked_by": "no event says which worker was lost, and no job can be leased",
    "claimed_at": "a heartbeat kept from an earlier attempt condemns a fresh one",
    "last_heartbeat_at": "a healthy job that takes longer than its ttl is reclaimed",
    "attempt_count": "attempts are counted from the reaper's events, which are pruned in time",
    "fail_reason": "the row does not say why its job was reclaimed",
}
# ... and whoever wants leases, which take all of them.
COSTS_TO_LEASE: Final = {
    "lease_expires_at": "no leases: a job is late by its ttl alone",
    "lease_epoch": "no leases: a worker that lost its job is not kept from writing",
    "max_attempts": "register(max_attempts=…) holds for every row",
    "reap_count": "the row does not count lost workers, and max_reaps has no effect",
    "next_earliest_run_at": "a job that failed or was reaped runs again at once, with no backoff",
    "expected_duration_ms": "a lease is as long for a long job as for a short one",
    "deadline_at": "max_runtime has no effect",
    "finished_at": "the row does not say when its job ended",
    "dispatched_at": "its jobs are not dispatched to Celery",
    "fail_code": "the row does not say by a code why its job failed",
}

NO_LEASES: Final = "; say reclaim_only=True where the table is to have no leases"


def register() -> None:
    """Register every check; called once from ``AppConfig.ready()``."""
    checks.register(check_settings, "jobreaper")
    checks.register(check_databases, "jobreaper")
    checks.register(check_adopted_tables, "jobreaper")
    checks.register(check_installed_sql, checks.Tags.database)
    checks.register(check_tables_in_the_database, checks.Tags.database)


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
    """Report E004 (a job table is not in PostgreSQL) and E007 (its database never commits)."""
    messages = [message for table in job_tables() for message in _check_database(table)]
    for alias in sorted({table.alias for table in job_tables()}):
        if not connections[alias].settings_dict["AUTOCOMMIT"]:
            messages.append(
                checks.Error(
                    f"DATABASES[{alias!r}] holds job tables and has AUTOCOMMIT off: nothing "
                    "would commit what is written to them.",
                    hint=f"Leave AUTOCOMMIT on. {DOCS}e007",
                    id="jobreaper.E007",
                )
            )
    return messages


def check_adopted_tables(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Report E005 (a table that cannot be reaped) and W011 (what an adopted table lacks)."""
    messages: list[checks.CheckMessage] = []
    for table in job_tables():
        messages += [_e005(table, *obstacle) for obstacle in _obstacles(table)]
        costs = [f"- {part}: {cost}" for part, cost in _costs(table)]
        if costs:
            messages.append(
                checks.Warning(
                    f"Job table {table.name!r} has no column for\n" + "\n".join(costs),
                    hint="Name the columns in register(columns={…}) or add them"
                    + ("" if table.reclaim_only else NO_LEASES)
                    + f". {DOCS}w011",
                    obj=table.model,
                    id="jobreaper.W011",
                )
            )
    return messages


def _e005(table: JobTable, problem: str, hint: str) -> checks.Error:
    return checks.Error(
        f"Job table {table.name!r} cannot be reaped: {problem}.",
        hint=f"{hint} {DOCS}e005",
        obj=table.model,
        id="jobreaper.E005",
    )


def _obstacles(table: JobTable) -> Iterator[tuple[str, str]]:
    if table.has_composite_key and issubclass(table.model, LeasedJob):
        yield (
            "its key is composite, and jobs with leases have a key of one column",
            "Give the model a key of its own and let a UniqueConstraint have the other columns.",
        )
    if not table.can_be_leased:
        if not {"claimed_at", "last_heartbeat_at"} & table.columns.keys():
            yield (
                "it has no column for claimed_at or last_heartbeat_at, so no job of it can be late",
                "Name the column that says since when a job runs, or add one.",
            )
        if table.ttl_sec is None and not table.ttl_sec_by_stage:
            yield (
                "it has neither leases nor a ttl, so no job of it can be late",
                "Give register() a ttl.",
            )
    for part in CLEARED_TIMES:
        if not table.is_nullable(part):
            yield (
                f"the column {table.columns[part]!r} ({part}) may not be NULL, which it is after "
                "a reap",
                _dropping_not_null(table.columns[part]),
            )
    for part in CLEARED_TEXTS:
        # A worker of a table without leases is only taken from its job.
        is_written = table.can_be_leased or part != "locked_by"
        if not table.is_text(part) and (is_written or not table.is_nullable(part)):
            yield (
                f"the column {table.columns[part]!r} ({part}) is no text"
                + ("" if is_written else " and may not be NULL, which it is after a reap"),
                "Name a column of text" + ("." if is_written else ", or let this one be NULL."),
            )


def _dropping_not_null(column: str) -> str:
    return f"ALTER TABLE … ALTER COLUMN {column} DROP NOT NULL."


def _costs(table: JobTable) -> Iterator[tuple[str, str]]:
    for part in table.missing:
        if part in COSTS_TO_RECLAIM or not table.reclaim_only:
            yield part, COSTS_TO_RECLAIM.get(part) or COSTS_TO_LEASE[part]


def check_installed_sql(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Report W010: SQL functions or views in the database are not as a fresh render has them."""
    messages: list[checks.CheckMessage] = []
    tables = job_tables()
    for connection in _connections(databases):
        here = [table for table in tables if table.alias == connection.alias]
        elsewhere = [table for table in tables if table not in here]
        for drift in installed.drifted(connection, here, elsewhere):
            remedy = f"Run `manage.py reaper_sql --install --database {connection.alias}`."
            messages.append(
                checks.Warning(
                    f"{drift.name} in the database {connection.alias!r} {drift.problem}.",
                    hint=f"{drift.remedy or remedy} {DOCS}w010",
                    id="jobreaper.W010",
                )
            )
    return messages


def check_tables_in_the_database(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Report E005 (columns that do not take what is written), W012 (rows that the reaper cannot
    see), W013 (columns that are not there yet), W014 (times without a zone) and W015 (texts that
    may not fit).
    """
    return [
        message
        for connection in _connections(databases)
        for table in job_tables()
        if _is_same_database(connection, connections[table.alias])
        for message in _check_table(connection, table)
    ]


def _check_table(connection: BaseDatabaseWrapper, table: JobTable) -> Iterator[checks.CheckMessage]:
    there = installed.table_as_it_is(table, connection)
    if there is None:  # It is still to be migrated.
        return
    if there.hides_rows:
        yield checks.Warning(
            f"Job table {table.name!r} has row-level security, so the role {there.role!r} reaps "
            "only the rows that it sees.",
            hint=f"Reap as a role with BYPASSRLS or with a policy of its own. {DOCS}w012",
            obj=table.model,
            id="jobreaper.W012",
        )
    missing = sorted(set(table.columns.values()) - there.columns.keys())
    # Django itself tells of managed ones.
    if missing and not table.model._meta.managed:
        yield checks.Warning(
            f"Job table {table.name!r} has no column {', '.join(missing)} in the database "
            f"{connection.alias!r}.",
            hint=f"Add what the model of this name promises. {DOCS}w013",
            obj=table.model,
            id="jobreaper.W013",
        )
    times = {table.columns[part] for part in TIMES if part in table.columns}
    types = {column: there.columns[column].type for column in sorted(times & there.columns.keys())}
    odd = [f"{column} ({kind})" for column, kind in types.items() if kind != TIME_TYPE]
    if odd:
        zone = connection.timezone_name
        yield checks.Warning(
            f"Job table {table.name!r} has times that are no {TIME_TYPE}: {', '.join(odd)}.",
            hint=f"One without time zone is taken to be in {zone}; no other type works. {DOCS}w014",
            obj=table.model,
            id="jobreaper.W014",
        )
    found = {part: there.columns.get(column) for part, column in table.columns.items()}
    known = {part: column for part, column in found.items() if column is not None}
    for obstacle in _obstacles_there(connection, table, known):
        yield _e005(table, *obstacle)
    short = [
        f"{table.columns[part]} ({part}, {known[part].max_length} characters)"
        for part, needed in _lengths_needed(table)
        if part in known and (known[part].max_length or needed) < needed
    ]
    if short:
        yield checks.Warning(
            f"Job table {table.name!r} may have no room for what is written to {', '.join(short)}.",
            hint=f"A worker's name has up to {LONGEST_WORKER} characters; the other texts are cut "
            f"where the model's max_length is that of the column. {DOCS}w015",
            obj=table.model,
            id="jobreaper.W015",
        )


def _obstacles_there(
    connection: BaseDatabaseWrapper, table: JobTable, columns: Mapping[str, installed.Column]
) -> Iterator[tuple[str, str]]:
    """Yield what the database's columns do not take, in whatever way the model has them."""
    texts = CLEARED_TEXTS if table.can_be_leased else ("locked_by",)
    for part in (*CLEARED_TIMES, *texts):
        if part in columns and not columns[part].may_be_null and table.is_nullable(part):
            yield (
                f"the column {table.columns[part]!r} ({part}) may not be NULL, and the model says "
                "that it may",
                _dropping_not_null(table.columns[part]),
            )
    if "status" not in columns:
        return
    status = columns["status"]
    if status.is_domain_of_enum:
        yield (
            f"the status is of the domain {status.own_type}, and PostgreSQL compares no domain of "
            "an enum with a word",
            f"ALTER TABLE … ALTER COLUMN {table.columns['status']} TYPE {status.type}.",
        )
    refused = [
        f"{word!r} for {name}"
        for name in Status
        # Nothing ends a job of a table without leases but the reaper.
        if table.can_be_leased or name not in (Status.SUCCESS, Status.CANCELLED)
        for word in table.words[name]
        if not installed.takes(connection, status, word)
    ]
    if refused:
        yield (
            f"its status is {status.own_type} and cannot be {', '.join(refused)}",
            "Give words that the column takes in register(words={…}).",
        )


def _lengths_needed(table: JobTable) -> Iterator[tuple[str, int]]:
    """Yield how many characters the parts need that are written as text."""
    if table.can_be_leased:
        yield "locked_by", LONGEST_WORKER
    for part in ("fail_code", "fail_reason"):
        # A model without a limit promises room for anything.
        yield part, table.max_length(part) or LONGEST_TEXT


def _connections(databases: Sequence[str] | None) -> list[BaseDatabaseWrapper]:
    found = [connections[alias] for alias in databases or ()]
    return [connection for connection in found if connection.vendor == "postgresql"]


def _is_same_database(one: BaseDatabaseWrapper, other: BaseDatabaseWrapper) -> bool:
    # The reaper may have an alias of its own, for the role that it needs.
    keys = ("HOST", "PORT", "NAME")
    return [one.settings_dict[key] for key in keys] == [other.settings_dict[key] for key in keys]


def _check_database(table: JobTable) -> Iterator[checks.CheckMessage]:
    vendor = connections[table.alias].vendor
    if vendor != "postgresql":
        yield checks.Error(
            f"Job table {table.name!r} is in the database {table.alias!r}, which is {vendor}.",
            hint=f"Jobs are kept in PostgreSQL only: route the table there. {DOCS}e004",
            obj=table.model,
            id="jobreaper.E004",
        )
