"""From a ``.sql`` file to a statement for one job table: which column and which word goes where."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, LiteralString

from django.db import models
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from jobreaper import sql
from jobreaper.states import AttemptsCounted, EventType, FailCode, Status

if TYPE_CHECKING:
    from jobreaper.jobtable import JobTable

Parts = dict[str, Composable]

# As left() takes it.
LONGEST_TEXT: Final = 2**31 - 1

# How far down the line the oldest due job is looked for.
MOST_IN_LINE: Final = 10_000

SKIP_LOCKED: Final = SQL("FOR NO KEY UPDATE OF job SKIP LOCKED")
NO_LOCK: Final = SQL("")

# Composed in this order: a fragment may use those above it.
_FRAGMENTS: Final = (
    "policy_columns",
    "policy_rows",
    "policies",
    "claimed_columns",
    "backoff",
    "status_by_verdict",
    "unlock",
    "attempt_columns",
    "attempt",
    "attempts",
    "attempt_details",
    "unended",
    "chosen",
    "lost_columns",
    "verdict",
    "reaped",
)
# What ends an attempt and needs no verdict, with its event.
_ENDINGS: Final = {"finished": EventType.JOB_FINISHED, "released": EventType.JOB_RELEASED}
# Set to "none" by some verb.
_EMPTIED_TEXTS: Final = ("locked_by", "fail_code", "fail_reason")
_DUE: Final = {"due_to_claim": "of_stages", "due_to_dispatch": "to_dispatch"}
_TAKES_A_PLACE: Final = {"due_to_claim": "live", "due_to_dispatch": "live_or_sent"}


def leased(table: JobTable, name: str, **overriding: Composable) -> str:
    """Return a statement of the protocol for a table that has all its columns."""
    return sql.render(f"statements/{name}", leased_parts(table, **overriding))


def reap(
    table: JobTable, name: str, lock: Composable, *, by_lot: bool = False, **overriding: Composable
) -> str:
    """Return the statement of a pass over a table with leases: oldest first, or ``by_lot``."""
    parts = {**leased_parts(table, **overriding), "lock": lock}
    parts["order"] = _order(SQL("job.{}").format(parts["lease_expires_at"]), by_lot)
    return sql.render(f"statements/{name}", _with(parts, "verdicts"))


def reclaim(table: JobTable, name: str, lock: Composable, *, by_lot: bool = False) -> str:
    """Return the statement of a pass over a table without leases: oldest first, or ``by_lot``."""
    parts = {**reclaim_parts(table), "lock": lock}
    parts["order"] = _order(parts["last_seen_at"], by_lot)
    return sql.render(f"statements/{name}", _with(parts, "chosen", "stale", "reclaimed_columns"))


def _order(time: Composable, by_lot: bool) -> Composable:
    return sql.compose("fragments/by_lot", {"time": time}) if by_lot else time


def totals(name: str) -> str:
    """Return a statement over the totals, which belong to no one table."""
    return sql.render(f"statements/{name}", _with({}, "labelled_totals", "named_stages"))


def scrape(table: JobTable) -> str:
    """Return the statement that tells how a table stands, for the metrics."""
    if table.can_be_leased:
        parts = _with(leased_parts(table), "lease_state")
        running: Composable = SQL("{} AS job").format(parts["table"])
        by_lease: Composable = SQL("ORDER BY job.{}").format(parts["lease_expires_at"])
    else:
        parts = _with(reclaim_parts(table), "state_by_limit")
        parts["lease_state"] = parts["state_by_limit"]
        running = SQL("{} AS job LEFT JOIN ({}) AS limits ON {}").format(
            parts["table"], parts["limits"], parts["limit_of_job"]
        )
        by_lease = SQL("")
    parts |= {"running": running, "by_lease": by_lease}
    return sql.render("statements/scrape", _with_line(table, parts))


def oldest_due_age(table: JobTable) -> str:
    """Return the statement that tells how long the oldest due job of a table with leases has
    waited, by the rule of the metrics.
    """
    return sql.render("statements/oldest_due_age", _with_line(table, leased_parts(table)))


def _with_line(table: JobTable, parts: Parts) -> Parts:
    """Add how the queued jobs stand in line, and since when those wait that are due."""
    parts |= {"in_line": SQL(""), "most_in_line": Literal(MOST_IN_LINE)}
    ranges: list[Composable] = [SQL("true")]
    if "next_earliest_run_at" in table.columns:
        time = SQL("job.{}").format(parts["next_earliest_run_at"])
        keys = [SQL("job.{}").format(Identifier(column)) for column in table.key_columns]
        parts["in_line"] = SQL("ORDER BY {}").format(SQL(", ").join([time, *keys]))
        ranges = [SQL("{} <= statement_timestamp()").format(time), SQL("{} IS NULL").format(time)]
    parts["waiting_since"] = _waiting_since(table)
    parts["due"] = SQL(" UNION ALL ").join(
        [sql.compose("fragments/waiting_since", {**parts, "range": range_}) for range_ in ranges]
    )
    return parts


def plan(table: JobTable, status: Status) -> str:
    """Return the statement that asks the planner how many jobs have ``status``."""
    parts = {**_common_parts(table), "has_status": has_status(table, status)}
    return sql.render("statements/plan", parts)


def leased_parts(table: JobTable, **overriding: Composable) -> Parts:
    """Return what the statements of a table with leases are composed of; ``overriding`` parts take
    the place of those of the same name.
    """
    columns = [str(own.column) for own in table.model._meta.concrete_fields]
    parts = {
        **_common_parts(table),
        **{name: Identifier(str(own.column)) for name, own in table.extras.items()},
        "id": Identifier(table.key_columns[0]),
        "columns": SQL(", ").join([Identifier("job", column) for column in columns]),
        "metered_columns": _of_metered(table, "job.{2} AS {0},"),
        "metered_details": _of_metered(table, "{1}, attempt.{0},"),
        "attempts_of_job": _attempts(table, {}),
        "table_ttl_sec": SQL("{}::float8").format(Literal(table.ttl_sec)),
        # Of a row of the table, and of a row of an expression in the protocol's own names.
        "policy_of_row": _policy_of(table.columns["stage"]),
        "policy_of_job": _policy_of("stage"),
    }
    by_priority = SQL("job.{} DESC NULLS LAST, ").format
    has_priority = "priority" in table.extras
    parts["by_priority"] = by_priority(parts["priority"]) if has_priority else SQL("")
    for name in _FRAGMENTS:
        parts[name] = overriding.get(name) or sql.compose(f"fragments/{name}", parts)
    for name, event in _ENDINGS.items():
        parts["ended"] = sql.compose(
            "fragments/ended", {**parts, "event_type": Literal(event.value)}
        )
        parts[name] = sql.compose(f"fragments/{name}", parts)
    for name, error in (("failing", "error"), ("failing_many", "errors")):
        parts["error"] = sql.compose(f"fragments/{error}", parts)
        parts[name] = sql.compose("fragments/failing", parts)
    for name, not_after in (
        ("lease_end", SQL("job.{}").format(Identifier(table.columns["deadline_at"]))),
        ("lease_end_at_claim", SQL("statement_timestamp() + policy.max_runtime")),
    ):
        parts[name] = sql.compose("fragments/lease_end", {**parts, "not_after": not_after})
    has_type = "type" in table.extras
    kinds = [SQL("job.{}").format(parts["stage"])]
    kinds += [SQL("job.{}::text").format(parts["type"])] if has_type else []
    parts["not_paused"] = SQL(" AND ").join(
        [sql.compose("fragments/not_paused", {**parts, "kind": kind}) for kind in kinds]
    )
    parts["of_types"] = sql.compose("fragments/of_types", parts) if has_type else SQL("true")
    for name in _DUE:
        parts[name] = _due(table, parts, name)
    parts["key_is_free"] = _key_is_free(parts) if "dedupe_key" in table.extras else SQL("true")
    return parts


def digest(text: Composable) -> Composable:
    """Return the digest of a dedupe key, as the unique index has it."""
    return sql.compose("fragments/digest", {"text": text})


def _key_is_free(parts: Parts) -> Composable:
    digests = {
        f"digest_of_{row}": digest(SQL("{}.{}::text").format(SQL(row), parts["dedupe_key"]))
        for row in ("job", "other")
    }
    return sql.compose("fragments/key_is_free", {**parts, **digests})


def _of_metered(table: JobTable, pattern: LiteralString) -> Composable:
    """Return what metering wants of a job, where the table has it: whose it was, and what."""
    found = [(n, str(table.extras[n].column)) for n in ("org_id", "type") if n in table.extras]
    return SQL("\n").join(
        [SQL(pattern).format(Identifier(n), Literal(n), Identifier(column)) for n, column in found]
    )


def limited(table: JobTable, name: str, **overriding: Composable) -> str:
    """Return a claim or dispatch that keeps each stage to its ``max_running``."""
    parts = leased_parts(table, **overriding)
    for due in _DUE:
        parts[due] = _due_within_limits(table, parts, due)
    return sql.render(f"statements/{name}", parts)


def _due(
    table: JobTable, parts: Mapping[str, Composable], name: str, **changed: Composable
) -> Composed:
    parts = {**parts, "not_full": SQL("true"), "picked": SQL("due"), **changed}
    wanted = sql.compose(f"fragments/{_DUE[name]}", parts)
    parts = {**parts, "wanted": wanted}
    if "priority" not in table.extras:
        return sql.compose("fragments/due", parts)
    conditions = [SQL("job.{} = present.priority")]
    # What the model of somebody else's table says of NULL need not be so.
    if table.extras["priority"].null or not table.model._meta.managed:
        conditions.append(SQL("job.{} IS NULL AND present.priority IS NULL"))
    of_present = [
        sql.compose(
            "fragments/due_of_priority", {**parts, "has_priority": each.format(parts["priority"])}
        )
        for each in conditions
    ]
    return sql.compose(
        "fragments/due_by_priority", {**parts, "of_present": SQL(" UNION ALL ").join(of_present)}
    )


def _due_within_limits(table: JobTable, parts: Parts, name: str) -> Composed:
    parts = _with({**parts}, "live", "live_or_sent")
    takes_a_place = parts[_TAKES_A_PLACE[name]]
    slots = sql.compose("fragments/slots", {**parts, "takes_a_place": takes_a_place})
    due_or_more = _due(
        table,
        parts,
        name,
        not_full=sql.compose("fragments/not_full", parts),
        picked=SQL("due_or_more"),
    )
    is_claim = name == "due_to_claim"
    sent_in_vain = sql.compose("fragments/sent_in_vain", parts) if is_claim else SQL("")
    return sql.compose(
        "fragments/due_within_limits",
        {**parts, "slots": slots, "sent_in_vain": sent_in_vain, "due_or_more": due_or_more},
    )


def reclaim_parts(table: JobTable) -> Parts:
    """Return what the statements of a table without leases are composed of."""
    keys = [Identifier(column) for column in table.key_columns]
    places = [Identifier(f"key_{n}") for n in range(len(keys))]
    same_key = [SQL("job.{} = verdict.{}").format(*pair) for pair in zip(keys, places, strict=True)]
    if len(keys) == 1:
        same_key.append(SQL("job.{} = ANY (ARRAY(SELECT key_0 FROM verdict))").format(keys[0]))
    parts = {
        **_common_parts(table),
        "key_columns": SQL(", ").join(
            [SQL("job.{} AS {}").format(*pair) for pair in zip(keys, places, strict=True)]
        ),
        "key_as_text": _key_as_text(keys),
        "key_of_verdict": SQL("key_0" if len(keys) == 1 else "job_id"),
        "is_verdicts_job": SQL(" AND ").join(same_key),
        "last_seen_at": last_seen_at(table),
        "read_stage": _read(table, "stage", "text"),
        "read_locked_by": _read(table, "locked_by", "text"),
        "on_expiry": Literal(table.on_expiry.value),
        "attempts_a_reap": SQL(str(int(table.attempts_counted is AttemptsCounted.REAP))),
        "note": Literal(table.note),
        "limits": limits(table),
        "limit_of_job": _limit_of_job(table),
    }
    parts["attempts_of_job"] = _attempts(table, parts)
    _with(parts, "status_by_verdict")
    parts["reclaim_assignments"] = _assignments(table, parts)
    return parts


def last_seen_at(table: JobTable) -> Composable:
    """Return the last sign of life of ``job``. GREATEST, not COALESCE: a heartbeat kept from an
    earlier attempt must not condemn a fresh lock.
    """
    signs: list[Composable] = [
        SQL("job.{}").format(Identifier(table.columns[part]))
        for part in ("last_heartbeat_at", "claimed_at")
        if part in table.columns
    ]
    return SQL("GREATEST({})").format(SQL(", ").join(signs or [SQL("NULL::timestamptz")]))


def _waiting_since(table: JobTable) -> Composable:
    """Return since when ``job`` could have been claimed: its time has come, it was made, its last
    attempt has ended, whichever was last. A released job keeps the time of its first attempt.
    """
    times = [
        table.columns[part]
        for part in ("next_earliest_run_at", "last_heartbeat_at")
        if part in table.columns
    ]
    times += [str(own.column) for name, own in table.extras.items() if name == "created_at"]
    columns = [SQL("job.{}").format(Identifier(column)) for column in times]
    return SQL("GREATEST(NULL::timestamptz, {})").format(SQL(", ").join(columns))


def limits(table: JobTable) -> Composable:
    """Return the query of the table's times to live: ``ttl``, with its ``stage`` where it is one
    stage's.
    """
    if not table.ttl_sec_by_stage:
        return SQL("SELECT make_interval(secs => {}) AS ttl").format(Literal(table.ttl_sec))
    rows = [
        SQL("({}, make_interval(secs => {}))").format(Literal(stage), Literal(sec))
        for stage, sec in table.ttl_sec_by_stage.items()
    ]
    return SQL("SELECT * FROM (VALUES {}) AS limits (stage, ttl)").format(SQL(", ").join(rows))


def _common_parts(table: JobTable) -> Parts:
    keys = [Identifier(column) for column in table.key_columns]
    single = len(keys) == 1
    return {
        "table": Identifier(*table.name_parts),
        "table_name": Literal(table.name),
        "id_type": SQL(id_type(table)),
        "key": SQL("job.{}").format(keys[0]) if single else _key_as_text(keys),
        **{part: Identifier(column) for part, column in table.columns.items()},
        **{status.value: Literal(table.word(status)) for status in table.words},
        **{f"no_{part}": _nothing(table, part) for part in _EMPTIED_TEXTS},
        "max_attempts_of_job": SQL("coalesce({}, {})").format(
            _read(table, "max_attempts", "int"), Literal(table.max_attempts)
        ),
        # A text that does not fit would keep its job from ever being given back or failed.
        "longest_fail_reason": Literal(table.max_length("fail_reason") or LONGEST_TEXT),
        "longest_fail_code": Literal(table.max_length("fail_code") or LONGEST_TEXT),
        # Not by left(): the column of a table without leases may be an enum.
        "stored_timeout": Literal(FailCode.TIMEOUT.value[: table.max_length("fail_code")]),
        "is_queued": has_status(table, Status.QUEUED),
        "is_processing": has_status(table, Status.PROCESSING),
    }


def id_type(table: JobTable) -> str:
    """Return the type of a job's key in statements, without its length: a cast would cut a longer
    key to one of another job. A composite key is text.
    """
    if len(table.key_columns) > 1:
        return "text"
    own = table.pk.rel_db_type(table.connection()) or "text"
    bare = re.sub(r" *\([\d, ]+\)", "", own)
    # A char without a length has room for one character.
    return "bpchar" if bare in ("char", "character") else bare


def _nothing(table: JobTable, part: str) -> Composable:
    """Return what stands for "none" in a part's column: Django's own texts are empty, not NULL."""
    return SQL("NULL" if table.is_nullable(part) else "''")


def has_status(table: JobTable, status: Status) -> Composable:
    """Return the condition that ``job`` has ``status``, in a form that a partial index serves."""
    column = Identifier(table.columns["status"])
    words = [Literal(word) for word in table.words[status]]
    if len(words) == 1:
        return SQL("job.{} = {}").format(column, words[0])
    return SQL("job.{} IN ({})").format(column, SQL(", ").join(words))


def _with(parts: Parts, *fragments: str) -> Parts:
    for name in fragments:
        parts[name] = sql.compose(f"fragments/{name}", parts)
    return parts


def _policy_of(stage: str) -> Composed:
    return sql.compose("fragments/policy_of_job", {"stage": Identifier(stage)})


def _limit_of_job(table: JobTable) -> Composable:
    if not table.ttl_sec_by_stage:
        return SQL("true")
    # The kind of work may be an enum or a number.
    return SQL("limits.stage = job.{}::text").format(Identifier(table.columns["stage"]))


def key_in_utc(table: JobTable) -> Composable:
    """Return the key of ``job`` as text, as a session has it whose time zone is UTC."""
    if not table.has_composite_key:
        return _key_as_text([Identifier(table.key_columns[0])])
    values: list[Composable] = []
    for own in table.model._meta.pk_fields:
        value = SQL("job.{}").format(Identifier(str(own.column)))
        is_time = isinstance(own, models.DateTimeField)
        values.append(sql.compose("fragments/time_in_utc", {"time": value}) if is_time else value)
    return SQL("jsonb_build_array({})::text").format(SQL(", ").join(values))


def _key_as_text(keys: list[Identifier]) -> Composable:
    columns = [SQL("job.{}").format(key) for key in keys]
    if len(columns) == 1:
        return SQL("{}::text").format(columns[0])
    return SQL("jsonb_build_array({})::text").format(SQL(", ").join(columns))


def _read(table: JobTable, part: str, kind: LiteralString) -> Composable:
    """Return a part of ``job``, NULL where the table has no column for it. A worker may be a uuid,
    a kind of work a number or an enum.
    """
    if part in table.columns:
        return SQL("job.{}::{}").format(Identifier(table.columns[part]), SQL(kind))
    return SQL("NULL::{}").format(SQL(kind))


def _attempts(table: JobTable, parts: Mapping[str, Composable]) -> Composable:
    """Return how many attempts ``job`` has had; counted from the events where the table does not
    count, so that a job which kills its workers ends all the same.
    """
    if "attempt_count" in table.columns:
        return SQL("coalesce({}, 0)").format(_read(table, "attempt_count", "int"))
    return sql.compose("fragments/attempts_by_events", parts)


def _assignments(table: JobTable, parts: Mapping[str, Composable]) -> Composed:
    """Return the assignments of a reclaim, without those to columns that the table lacks."""
    lines = sql.source("fragments/reclaim_assignments").strip().split(",\n")
    kept = [line for line in lines if re.match(r"\{(\w+)\}", line)[1] in table.columns]  # type: ignore[index]
    return SQL(",\n".join(kept)).format(**{**sql.vocabulary(), **parts})
