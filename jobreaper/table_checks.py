"""System checks of job tables: what prevents reaping, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from django.core.checks import CheckMessage
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf
from jobreaper.base import LeasedJob
from jobreaper.db import postgresql_among
from jobreaper.findings import check, database_check, error, warning
from jobreaper.progress import PROGRESS_FIELDS
from jobreaper.schema import functions
from jobreaper.states import OnExpiry, Status
from jobreaper.tables import JobTable, job_tables
from jobreaper.tables.statements import LONGEST_TEXT

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

# Emptied together with these times, and written as text.
CLEARED_TEXTS: Final = ("locked_by", "fail_code", "fail_reason")

# The length of a host name on Linux, of a pid, and of the boot token.
LONGEST_WORKER: Final = len(f"{'h' * 64}:{2**22}:{'0' * 8}")

# What a missing part costs an adopted table: for reclaiming its jobs, ...
COSTS_TO_RECLAIM: Final = {
    "stage": "one ttl and one policy for all its jobs",
    "locked_by": "no event says which worker was lost, and no job can be leased",
    "claimed_at": "only heartbeats show whether a job is late, "
    "so the UPDATE that starts a job has to set one",
    "last_heartbeat_at": "a healthy job that takes longer than its ttl is reclaimed",
    "attempt_count": "attempts are counted from the reaper's events, which are pruned in time",
    "fail_reason": "the row does not say why its job was reclaimed",
}

# ... and for leases, which need all of them.
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


@check
def check_adopted_tables() -> Iterator[CheckMessage]:
    """Report E005 (a table that cannot be reaped), W011 (missing columns of an adopted table) and
    W016 (words that are not choices of its status).
    """
    for table in job_tables():
        yield from (_e005(table, *obstacle) for obstacle in _obstacles(table))
        yield from _check_choices(table)
        costs = [f"- {part}: {cost}" for part, cost in _costs(table)]
        if costs:
            yield warning(
                "W011",
                f"Job table {table.name!r} has no column for\n" + "\n".join(costs),
                "Name the columns in register(columns={…}) or add them"
                + ("" if table.reclaim_only else NO_LEASES)
                + ".",
                table.model,
            )


@check
def check_stalling() -> Iterator[CheckMessage]:
    """Report W029: a stage has a ``stall_after``, and a table has no fields for progress."""
    stages = conf.present()[0].stages_that_stall
    for table in job_tables():
        if stages and table.can_be_leased and not table.tracks_progress:
            yield warning(
                "W029",
                f"STAGES has a stall_after for {', '.join(map(repr, stages))}, which has no effect "
                f"on jobs of {table.name!r}: it does not have the fields "
                f"{', '.join(PROGRESS_FIELDS)}.",
                "Let the model inherit from jobreaper.TracksProgress too, and migrate; or silence "
                "this if the table has no jobs of such a stage.",
                table.model,
            )


def _e005(table: JobTable, problem: str, hint: str) -> CheckMessage:
    return error(
        "E005",
        f"Job table {table.name!r} cannot be reaped: {problem}.",
        hint,
        table.model,
    )


def _obstacles(table: JobTable) -> Iterator[tuple[str, str]]:
    if table.has_composite_key and issubclass(table.model, LeasedJob):
        yield (
            "its key is composite, and jobs with leases have a key of one column",
            "Give the model a key of its own and let a UniqueConstraint have the other columns.",
        )
    if table.key_is_computed:
        yield (
            "its key is computed in SQL, and a statement compares the column itself",
            "Let Python convert the key, with from_db_value() and get_prep_value().",
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
    for part in _cleared_times(table):
        if not table.is_nullable(part):
            yield (
                f"the column {table.columns[part]!r} ({part}) may not be NULL, which it is after "
                "a reap",
                _without_not_null(table, part),
            )
    for part in CLEARED_TEXTS:
        # In a table without leases, the worker's name is only removed.
        is_written = table.can_be_leased or part != "locked_by"
        if not table.is_text(part) and (is_written or not table.is_nullable(part)):
            yield (
                f"the column {table.columns[part]!r} ({part}) is no text"
                + ("" if is_written else " and may not be NULL, which it is after a reap"),
                "Name a column of text" + ("." if is_written else ", or let this one be NULL."),
            )

    if not _takes_any(table, Status.PROCESSING):
        yield (
            f"no word for processing ({', '.join(table.words[Status.PROCESSING])}) is among the "
            "choices of its status, so no job of it is ever seen running",
            "Give the words of the choices in register(words={…}).",
        )


def _cleared_times(table: JobTable) -> list[str]:
    """The times that a reap empties: all times of an attempt, if there may be another attempt."""
    if _fails_for_good(table):
        return [part for part in CLEARED_TIMES if part not in ("claimed_at", "finished_at")]
    return [*CLEARED_TIMES, *(["last_heartbeat_at"] if table.has_only_beats else [])]


def _fails_for_good(table: JobTable) -> bool:
    return table.on_expiry is OnExpiry.FAIL and not table.can_be_leased


def _without_not_null(table: JobTable, part: str) -> str:
    column = table.columns[part]
    remedy = f"ALTER TABLE … ALTER COLUMN {column} DROP NOT NULL."
    if table.can_be_leased:
        return remedy
    if part in ("claimed_at", "finished_at", "last_heartbeat_at"):
        remedy = f'Say on_expiry="fail" if a lost job must not run again. Otherwise: {remedy}'
    return f"If it does not mean this, say columns={{{part!r}: None}}. {remedy}"


def _status_words(table: JobTable) -> list[Status]:
    """The statuses that are read or written: only the reaper ends a job of a table without
    leases.
    """
    others = () if table.can_be_leased else (Status.SUCCESS, Status.CANCELLED)
    return [status for status in Status if status not in others]


def _takes_any(table: JobTable, status: Status) -> bool:
    choices = table.choices("status")
    return not choices or any(word in choices for word in table.words[status])


def _check_choices(table: JobTable) -> Iterator[CheckMessage]:
    choices = table.choices("status")
    strange = [
        f"{word!r} for {status}"
        for status in _status_words(table)
        for word in table.words[status]
        if choices and word not in choices
    ]
    if strange:
        yield warning(
            "W016",
            f"Job table {table.name!r} has words that are not among the choices of its status: "
            f"{', '.join(strange)}.",
            f"Its choices are {', '.join(sorted(choices))}.",
            table.model,
        )


def _costs(table: JobTable) -> Iterator[tuple[str, str]]:
    for part in table.missing:
        if part == "attempt_count" and _fails_for_good(table):
            continue
        if part in COSTS_TO_RECLAIM or not table.reclaim_only:
            yield part, COSTS_TO_RECLAIM.get(part) or COSTS_TO_LEASE[part]


@database_check
def check_tables_in_the_database(databases: Sequence[str] | None) -> Iterator[CheckMessage]:
    """Report E005 (columns that do not accept what is written), W012 (rows that the reaper cannot
    see), W013 (missing columns), W014 (times without a zone) and W015 (texts that may be too long).
    """
    return (
        message
        for connection in postgresql_among(databases)
        for table in job_tables()
        if _is_same_database(connection, connections[table.alias])
        for message in _check_table(connection, table)
    )


def _check_table(connection: BaseDatabaseWrapper, table: JobTable) -> Iterator[CheckMessage]:
    there = functions.table_as_it_is(table, connection)
    if there is None:  # The table has not been migrated yet.
        return
    if there.hides_rows:
        yield warning(
            "W012",
            f"Job table {table.name!r} has row-level security, so the role {there.role!r} reaps "
            "only the rows that it sees.",
            "Reap as a role with BYPASSRLS or with a policy of its own.",
            table.model,
        )
    missing = sorted(set(table.columns.values()) - there.columns.keys())
    # Django itself reports missing columns of managed models.
    if missing and not table.model._meta.managed:
        yield warning(
            "W013",
            f"Job table {table.name!r} has no column {', '.join(missing)} in the database "
            f"{connection.alias!r}.",
            "Add what the model of this name promises.",
            table.model,
        )
    times = {table.columns[part] for part in TIMES if part in table.columns}
    types = {column: there.columns[column].type for column in sorted(times & there.columns.keys())}
    odd = [f"{column} ({kind})" for column, kind in types.items() if kind != TIME_TYPE]
    if odd:
        zone = connection.timezone_name
        yield warning(
            "W014",
            f"Job table {table.name!r} has times that are no {TIME_TYPE}: {', '.join(odd)}.",
            f"One without time zone is taken to be in {zone}; no other type works.",
            table.model,
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
        yield warning(
            "W015",
            f"Job table {table.name!r} may have no room for what is written to {', '.join(short)}.",
            f"A worker's name has up to {LONGEST_WORKER} characters; the other texts are cut "
            f"where the model's max_length is that of the column.",
            table.model,
        )


def _obstacles_there(
    connection: BaseDatabaseWrapper, table: JobTable, columns: Mapping[str, functions.Column]
) -> Iterator[tuple[str, str]]:
    """Yield what the database's columns do not accept, whatever the model declares."""
    texts = CLEARED_TEXTS if table.can_be_leased else ("locked_by",)
    for part in (*_cleared_times(table), *texts):
        if part in columns and not columns[part].may_be_null and table.is_nullable(part):
            yield (
                f"the column {table.columns[part]!r} ({part}) may not be NULL, and the model says "
                "that it may",
                _without_not_null(table, part),
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
        for name in _status_words(table)
        for word in table.words[name]
        if not functions.takes(connection, status, word)
    ]
    if refused:
        yield (
            f"its status is {status.own_type} and cannot be {', '.join(refused)}",
            "Give words that the column takes in register(words={…}).",
        )


def _lengths_needed(table: JobTable) -> Iterator[tuple[str, int]]:
    """Yield the number of characters that the parts need that are written as text."""
    if table.can_be_leased:
        yield "locked_by", LONGEST_WORKER
    for part in ("fail_code", "fail_reason"):
        # A model without a limit promises that any text fits.
        yield part, table.max_length(part) or LONGEST_TEXT


def _is_same_database(one: BaseDatabaseWrapper, other: BaseDatabaseWrapper) -> bool:
    # The reaper may have its own alias, with the role that it needs.
    keys = ("HOST", "PORT", "NAME")
    return [one.settings_dict[key] for key in keys] == [other.settings_dict[key] for key in keys]
