"""The statements of a pass, for tables with and without leases."""

from __future__ import annotations

from typing import Final

from psycopg.sql import SQL, Composable, Identifier, Literal

from jobreaper import sql
from jobreaper.base import PROTOCOL_COLUMNS
from jobreaper.tables.shape import Shape
from jobreaper.tables.statements.parts import (
    Parts,
    all_written,
    attempts,
    common_parts,
    key_as_text,
    leased_parts,
    read,
    with_fragments,
)

SKIP_LOCKED: Final = SQL("FOR NO KEY UPDATE OF job SKIP LOCKED")
NO_LOCK: Final = SQL("")


def one_pass(table: Shape, **overriding: Composable) -> str:
    """Return the statement of one batch of a pass, oldest first."""
    if table.can_be_leased:
        return _reap(table, "reap", {"lock": SKIP_LOCKED, **overriding})
    return _reclaim(table, "reclaim", {"lock": SKIP_LOCKED, **overriding})


def dry_run(table: Shape, **overriding: Composable) -> str:
    """Return the statement that returns the verdicts of a pass, without locks."""
    of_kind = _reap if table.can_be_leased else _reclaim
    return of_kind(table, "dry_run", {"lock": NO_LOCK, **overriding})


def _reap(table: Shape, name: str, overriding: Parts) -> str:
    parts = with_verdict(leased_parts(table, **overriding))
    parts = with_fragments(parts, "verdicts", "reaped", "event", "counted")
    parts |= {"since": SQL("ended_at"), "all_written": all_written("reaped", of=SQL("verdict"))}
    return sql.render(f"statements/{name}", parts)


def _reclaim(table: Shape, name: str, overriding: Parts) -> str:
    parts = {**reclaim_parts(table), **overriding}
    parts = with_fragments(parts, "stale", "status_by_verdict", "reaped_columns")
    parts = with_fragments(parts, "event", "counted")
    parts |= {"verdicts": parts["stale"], "since": SQL("last_seen_at")}
    parts["all_written"] = all_written("reaped", of=SQL("verdict"))
    # A column that the table does not have is not set.
    lacking = dict.fromkeys(set(PROTOCOL_COLUMNS) - table.columns.keys())
    # The heartbeat is kept as evidence, unless the next attempt would be judged by it.
    only_sign = parts["last_heartbeat_at"] if table.has_only_beats else None
    return sql.render(f"statements/{name}", {**parts, **lacking, "only_sign": only_sign})


def with_verdict(parts: Parts) -> Parts:
    """Add the verdict on each job that has lost its worker."""
    parts = with_fragments(parts, "lost_columns", "backoff", "verdict", "status_by_verdict")
    return with_fragments(parts, "reaped_columns")


def reclaim_parts(table: Shape) -> Parts:
    """Return the common parts of the statements of a table without leases."""
    keys = [Identifier(column) for column in table.key_columns]
    places = [Identifier(f"key_{n}") for n in range(len(keys))]
    same_key = [SQL("job.{} = verdict.{}").format(*pair) for pair in zip(keys, places, strict=True)]
    if len(keys) == 1:
        same_key.append(SQL("job.{} = ANY (ARRAY(SELECT key_0 FROM verdict))").format(keys[0]))
    parts = {
        **common_parts(table),
        "key_columns": SQL(", ").join(
            [SQL("job.{} AS {}").format(*pair) for pair in zip(keys, places, strict=True)]
        ),
        "key_as_text": key_as_text(keys),
        "key_of_verdict": SQL("key_0" if len(keys) == 1 else "job_id"),
        "is_verdicts_job": SQL(" AND ").join(same_key),
        "last_seen_at": _last_seen_at(table),
        "read_stage": read(table, "stage", "text"),
        "read_locked_by": read(table, "locked_by", "text"),
        "read_claimed_at": read(table, "claimed_at", "timestamptz"),
        "on_expiry": Literal(table.on_expiry.value),
        "counts_reaps": Literal(table.counts_reaps),
        "note": Literal(table.note),
        "limits": _limits(table),
        "limit_of_job": _limit_of_job(table),
    }
    parts["attempts_of_job"] = attempts(table, parts)
    return with_fragments(parts, "chosen")


def _last_seen_at(table: Shape) -> Composable:
    """Return the last sign of life of ``job``. GREATEST, not COALESCE: an old heartbeat, kept from
    an earlier attempt, must not make a new attempt look dead.
    """
    signs: list[Composable] = [
        SQL("job.{}").format(Identifier(table.columns[part]))
        for part in ("last_heartbeat_at", "claimed_at")
        if part in table.columns
    ]
    return SQL("GREATEST({})").format(SQL(", ").join(signs or [SQL("NULL::timestamptz")]))


def _limits(table: Shape) -> Composable:
    """Return the query of the table's times to live: ``ttl``, with its ``stage`` if it applies to
    one stage.
    """
    if not table.ttl_sec_by_stage:
        return SQL("SELECT make_interval(secs => {}) AS ttl").format(Literal(table.ttl_sec))
    rows = [
        SQL("({}, make_interval(secs => {}))").format(Literal(stage), Literal(sec))
        for stage, sec in table.ttl_sec_by_stage.items()
    ]
    return SQL("SELECT * FROM (VALUES {}) AS limits (stage, ttl)").format(SQL(", ").join(rows))


def _limit_of_job(table: Shape) -> Composable:
    if not table.ttl_sec_by_stage:
        return SQL("true")
    # The stage may be an enum or a number.
    return SQL("limits.stage = job.{}::text").format(Identifier(table.columns["stage"]))
