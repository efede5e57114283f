"""The statements for a table with leases: one function per verb."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, LiteralString

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from jobreaper import sql
from jobreaper.states import Counted, EventType, Verb
from jobreaper.tables.shape import Shape
from jobreaper.tables.statements import due, progress
from jobreaper.tables.statements.due import Which
from jobreaper.tables.statements.parts import (
    Parts,
    all_written,
    digest,
    key_as_read,
    leased_parts,
    with_fragments,
)
from jobreaper.tables.statements.reaper import with_verdict

_ONE_ERROR: Final = SQL(
    "(SELECT %(fail_code)s::text AS fail_code, %(fail_reason)s::text AS fail_reason,\n"
    "        %(exception)s::text AS exception, %(traceback)s::text AS traceback) AS error\n"
    "    ON true"
)
_ERRORS: Final = SQL(
    "unnest(%(ids)s::{id_type}[], %(fail_codes)s::text[], %(fail_reasons)s::text[],\n"
    "       %(exceptions)s::text[], %(tracebacks)s::text[])\n"
    "    AS error (id, fail_code, fail_reason, exception, traceback) ON error.id = job.id"
)

_FROM_CLAIM: Final = SQL("statement_timestamp() + policy.max_runtime")

# A process may have two leases of a job, of which only the later one counts.
_JOBS_OF: Final = SQL("(SELECT DISTINCT id FROM {}) AS job")


# A heartbeat sets the end of a lease at most this much later than needed: a dead worker may be
# noticed that much later.
_LONGEST_RESERVE: Final = SQL("interval '5 minutes'")


def leased(table: Shape, name: str, **overriding: Composable) -> str:
    """Return the statement of a verb for a table that has all the protocol's columns."""
    return _VERBS[name](table, leased_parts(table, **overriding))


def limited(table: Shape, name: str, **overriding: Composable) -> str:
    """Return a claim or dispatch that keeps each stage to its ``max_running``."""
    return _LIMITED[name](table, leased_parts(table, **overriding), limited=True)


def _claim(table: Shape, parts: Parts, *, limited: bool = False, which: Which = Which.NEXT) -> str:
    parts = {
        **_with_claimed_columns(parts),
        "due": due.to_claim(table, parts, limited=limited, which=which),
        "lease_end": _lease_end(
            _lease_length(parts), SQL("{}{}").format(_FROM_CLAIM, parts["stall_from_claim"])
        ),
        "all_written": all_written("claimed", of=SQL("due")),
        "look": SQL(""),
        "on_true": SQL(""),
    }
    parts = with_fragments(parts, "begun", "policy_of_named")
    if which is Which.NAMED:
        return sql.render("statements/claim_one", parts)
    if which is Which.NEXT and table.is_indexed_by_kind:
        parts["claimed_columns"] = SQL("{},\nlook.is_cut").format(parts["claimed_columns"])
        parts["look"] = SQL("{} ").format(sql.compose("fragments/look", parts))
        parts["on_true"] = SQL(" ON true")
    return sql.render("statements/claim", parts)


def _claim_candidates(table: Shape, parts: Parts, *, limited: bool = False) -> str:
    parts["due"] = due.to_claim(table, parts, limited=limited, among=[due.NOT_TRIED])
    return sql.render("statements/candidates", parts)


def _dispatch_candidates(table: Shape, parts: Parts, *, limited: bool = False) -> str:
    parts["due"] = due.to_dispatch(table, parts, limited=limited, among=[due.NOT_TRIED])
    return sql.render("statements/candidates", parts)


def _forget_unqueued(_: Shape, parts: Parts) -> str:
    parts["verb_claim"] = Literal(Verb.CLAIM.value)
    return sql.render("statements/forget_unqueued", parts)


def _retake(_: Shape, parts: Parts) -> str:
    return sql.render("statements/retake", _with_claimed_columns(parts))


def _with_claimed_columns(parts: Parts) -> Parts:
    """The columns of a claimed job for Python; a SQL function returns the row."""
    remaining = SQL(
        "extract(epoch FROM job.{lease_expires_at} - statement_timestamp())::float8\n"
        "    AS lease_remaining_sec,\n"
        "{session_now} AS session"
    ).format(**parts)
    return {"claimed_columns": SQL("{},\n{}").format(parts["columns"], remaining), **parts}


def _heartbeat(table: Shape, parts: Parts, *, carries: bool = False) -> str:
    deadline = SQL("job.{}").format(parts["deadline_at"])
    if carries and table.tracks_progress:
        parts = progress.carried(parts)
    else:
        parts |= {"reported": SQL(""), "carries": SQL("")}
    not_after = SQL("{}{}").format(deadline, parts["stall_as_it_is"])
    parts = {**parts, "length": _lease_length(parts)}
    parts["soonest_end"] = _lease_end(SQL("its.length"), not_after)
    parts["latest_end"] = _lease_end(
        SQL("its.length + LEAST(its.length / 3, {})").format(_LONGEST_RESERVE), not_after
    )
    parts = with_fragments(parts, "renewed_end")
    parts["all_written"] = all_written("renewed", of=_JOBS_OF.format(SQL("reachable")))
    return sql.render("statements/heartbeat", parts)


def _lease_length(parts: Parts) -> Composed:
    return sql.compose("fragments/lease_length", parts)


def _lease_end(length: Composable, not_after: Composable) -> Composed:
    return sql.compose("fragments/lease_end", {"length": length, "not_after": not_after})


def _finish(table: Shape, parts: Parts, *, many: bool = False) -> str:
    return _ended(table, parts, "finished", EventType.JOB_FINISHED, many=many)


def _release(table: Shape, parts: Parts, *, many: bool = False) -> str:
    return _ended(table, parts, "released", EventType.JOB_RELEASED, many=many)


def _withdraw(table: Shape, parts: Parts) -> str:
    return _ended(table, parts, "withdrawn", EventType.JOB_RELEASED, many=True)


def _ended(table: Shape, parts: Parts, changes: str, event: EventType, *, many: bool) -> str:
    parts["with_result"] = _with_result(table, parts, many=many)
    parts["last_report"] = progress.last_report(table, parts, many=many)
    parts = with_fragments(_of_attempt(table, parts), "finished", "released", "withdrawn")
    parts |= {"changes": parts[changes], "event_type": Literal(event.value), "policies": SQL("")}
    parts["all_written"] = all_written("ended", of=_JOBS_OF.format(SQL("attempt")))
    return _end(with_fragments(parts, "ended"), many=many)


def _with_result(table: Shape, parts: Parts, *, many: bool) -> Composable:
    """Return what writes results, if there is a column for them. Without a result, it keeps what
    the job's function may have written there itself.
    """
    if not table.has_result:
        return SQL("")
    new = SQL("%(results)s::jsonb -> job.{id}::text" if many else "%(result)s::jsonb")
    return SQL("{result} = coalesce({new}, job.{result}),").format(
        result=parts["result"], new=new.format(**parts)
    )


def _fail(table: Shape, parts: Parts, *, many: bool = False) -> str:
    parts = with_fragments(_of_attempt(table, parts), "backoff", "status_by_verdict")
    parts["error"] = (_ERRORS if many else _ONE_ERROR).format(**parts)
    parts["last_report"] = progress.last_report(table, parts, many=many)
    parts["all_written"] = all_written("failed", of=_JOBS_OF.format(SQL("verdict")))
    parts["ended"] = sql.compose("fragments/failing", parts)
    parts["policies"] = SQL("policies AS MATERIALIZED (\n    {}\n),").format(
        sql.indented(parts["policies"], 4)
    )
    return _end(parts, many=many)


def _end(parts: Parts, *, many: bool) -> str:
    parts = with_fragments(parts, "event")
    return sql.render(f"statements/{'end_many' if many else 'end'}", parts)


def _of_attempt(table: Shape, parts: Parts) -> Parts:
    """Add the event's details of an attempt that ends."""
    parts = {
        **parts,
        "metered_columns": _of_metered(table, "job.{2} AS {0},"),
        "metered_details": _of_metered(table, "{1}, attempt.{0},"),
    }
    return with_fragments(parts, "attempt_columns", "attempt_details")


def _of_metered(table: Shape, pattern: LiteralString) -> Composable:
    """Return what metering needs of a job, if the table has it: whose it was, and its type."""
    found = [(n, str(table.extras[n].column)) for n in ("org_id", "type") if n in table.extras]
    return SQL("\n").join(
        [SQL(pattern).format(Identifier(n), Literal(n), Identifier(column)) for n, column in found]
    )


def _with_event(name: str) -> Callable[[Shape, Parts], str]:
    return lambda _, parts: sql.render(f"statements/{name}", with_fragments(parts, "event"))


def _as_it_is(name: str) -> Callable[[Shape, Parts], str]:
    return lambda _, parts: sql.render(f"statements/{name}", parts)


def _worker_lost(_: Shape, parts: Parts) -> str:
    counted = {
        "requeues": Literal(Counted.LOST_AND_REQUEUED.value),
        "failures": Literal(Counted.LOST_AND_FAILED.value),
    }
    # For all jobs of a worker, or for one at a time.
    parts = {**with_verdict(parts), **counted}
    parts = with_fragments(parts, "reaped", "event", "counted")
    parts["all_written"] = all_written("reaped", of=SQL("verdict"))
    return sql.render("statements/worker_lost", parts)


def _change_by_hand(table: Shape, parts: Parts) -> str:
    parts = _changing(parts)
    parts["key_is_free"] = _key_is_free(parts) if "dedupe_key" in table.extras else SQL("true")
    return sql.render("statements/change_by_hand", parts)


def _run_now(_: Shape, parts: Parts) -> str:
    return sql.render("statements/run_now", _changing(parts))


def _changing(parts: Parts) -> Parts:
    written = all_written("changed", of=SQL("job_before"))
    return {**with_fragments(parts, "event"), "all_written": written}


def _key_is_free(parts: Parts) -> Composable:
    digests = {
        f"digest_of_{row}": digest(SQL("{}.{}::text").format(SQL(row), parts["dedupe_key"]))
        for row in ("job", "other")
    }
    return sql.compose("fragments/key_is_free", {**parts, **digests})


def _dispatch(table: Shape, parts: Parts, *, limited: bool = False) -> str:
    parts["due"] = due.to_dispatch(table, parts, limited=limited)
    parts["key_as_read"] = key_as_read(table, SQL("job.{id}").format(**parts))
    parts["all_written"] = all_written("marked", of=SQL("due"))
    return sql.render("statements/dispatch", parts)


def _unhandled(table: Shape, parts: Parts) -> str:
    parts["kind"] = SQL("job.{}").format(parts["stage"])
    if "type" in table.extras:
        parts["kind"] = SQL(
            "CASE WHEN %(types)s::text[] IS NULL THEN job.{stage} ELSE job.{type}::text END"
        ).format(**parts)
    return sql.render("statements/unhandled", parts)


_LIMITED: Final[dict[str, Callable[..., str]]] = {
    "claim": _claim,
    "claim_by_kind": partial(_claim, which=Which.BY_KIND),
    "claim_one": partial(_claim, which=Which.NAMED),
    "claim_either": partial(_claim, which=Which.EITHER),
    "claim_candidates": _claim_candidates,
    "dispatch": _dispatch,
    "dispatch_candidates": _dispatch_candidates,
}
_VERBS: Final[dict[str, Callable[[Shape, Parts], str]]] = {
    "claim": _claim,
    "claim_by_kind": partial(_claim, which=Which.BY_KIND),
    "claim_one": partial(_claim, which=Which.NAMED),
    "claim_either": partial(_claim, which=Which.EITHER),
    "claim_candidates": _claim_candidates,
    "forget_unqueued": _forget_unqueued,
    "retake": _retake,
    "heartbeat": _heartbeat,
    "heartbeat_with_progress": partial(_heartbeat, carries=True),
    "finish": _finish,
    "finish_many": lambda table, parts: _finish(table, parts, many=True),
    "fail": _fail,
    "fail_many": lambda table, parts: _fail(table, parts, many=True),
    "release": _release,
    "release_many": lambda table, parts: _release(table, parts, many=True),
    "withdraw_many": _withdraw,
    "save_state": _as_it_is("save_state"),
    "read_state": _as_it_is("read_state"),
    "forget_states": _as_it_is("forget_states"),
    "reject": _with_event("reject"),
    "traced": _with_event("traced"),
    "worker_lost": _worker_lost,
    "held_by_worker": _as_it_is("held_by_worker"),
    "change_by_hand": _change_by_hand,
    "run_now": _run_now,
    "dispatch": _dispatch,
    "dispatch_candidates": _dispatch_candidates,
    "undo_dispatch": _as_it_is("undo_dispatch"),
    "unhandled": _unhandled,
}
