"""The statements that answer a person's questions about single jobs."""

from __future__ import annotations

from typing import Final

from psycopg.sql import SQL, Composable, Identifier

from jobreaper import sql
from jobreaper.progress import PROGRESS_FIELDS
from jobreaper.tables.shape import Shape
from jobreaper.tables.statements.parts import (
    attempts,
    common_parts,
    key_as_read,
    key_as_text,
    leased_parts,
    read,
)

_TEXTS: Final = ("stage", "locked_by", "fail_code", "fail_reason")
_TIMES: Final = (
    *("claimed_at", "lease_expires_at", "last_heartbeat_at", "deadline_at"),
    *("next_earliest_run_at", "dispatched_at", "finished_at"),
)


def job_facts(table: Shape) -> str:
    """Return the statement that reads how some jobs stand, of a table of any kind."""
    parts = leased_parts(table) if table.can_be_leased else common_parts(table)
    keys = [Identifier(column) for column in table.key_columns]
    counted: Composable = SQL("NULL::int")
    if "attempt_count" in table.columns:
        counted = attempts(table, parts)
    parts |= {
        "key_as_text": key_as_text(keys),
        "read_type": _extra(table, "type"),
        "read_queue": _extra(table, "queue"),
        **{f"read_{name}": _of_progress(table, name) for name in PROGRESS_FIELDS},
        "read_attempt_count": counted,
        **{f"read_{part}": read(table, part, "text") for part in _TEXTS},
        **{f"read_{part}": read(table, part, "timestamptz") for part in _TIMES},
        "key_as_read": key_as_read(table, SQL("key.id")),
    }
    return sql.render("statements/job_facts", parts)


def _extra(table: Shape, name: str) -> Composable:
    """Return a field of ``EXTRA_FIELDS`` as text, or NULL if the table does not have it."""
    if name not in table.extras:
        return SQL("NULL::text")
    return SQL("job.{}::text").format(Identifier(str(table.extras[name].column)))


def _of_progress(table: Shape, name: str) -> Composable:
    kind = SQL("text" if name == "progress" else "timestamptz")
    if not table.tracks_progress:
        return SQL("NULL::{}").format(kind)
    return SQL("job.{}::{}").format(Identifier(str(table.extras[name].column)), kind)


def progress_columns(table: Shape) -> Composable:
    """Return the columns of what a job has reported, NULL in a table that does not have them."""
    columns = [_of_progress(table, name) for name in PROGRESS_FIELDS]
    named = zip(columns, map(Identifier, PROGRESS_FIELDS), strict=True)
    return SQL(",\n").join([SQL("{} AS {}").format(*pair) for pair in named])


def running_within(table: Shape, limit: str) -> str:
    """Return the statement that names the jobs which take the slots of a ``stage`` or ``queue``."""
    parts = leased_parts(table)
    parts["limited"] = SQL("job.{}").format(parts[limit])
    return sql.render("statements/running_within", parts)


def some_of(table: Shape) -> Composable:
    """Return the rows of the jobs that a parameter ``ids`` names, in the place of the whole table:
    what a verb would do with those.
    """
    parts = common_parts(table)
    return SQL(
        "(SELECT job.* FROM {table} AS job WHERE {key} = ANY (%(ids)s::{id_type}[]))"
    ).format(**{name: parts[name] for name in ("table", "key", "id_type")})
