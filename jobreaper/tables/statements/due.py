"""The next due jobs for a claim or a dispatch: their order, and which are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from psycopg.sql import SQL, Composable, Composed, Literal

from jobreaper import sql
from jobreaper.states import DEFAULT_QUEUE, PAUSED_QUEUE_PREFIX, Verb
from jobreaper.tables.shape import Shape
from jobreaper.tables.statements import kinds
from jobreaper.tables.statements.parts import Parts, all_of, with_fragments

_DUE: Final = SQL("due")
_OF_STAGES: Final = SQL("(%(stages)s::text[] IS NULL OR job.{stage} = ANY (%(stages)s::text[]))")
_OF_TYPES: Final = SQL("(%(types)s::text[] IS NULL OR job.{type}::text = ANY (%(types)s::text[]))")
_OF_QUEUES: Final = SQL(
    "(%(queues)s::text[] IS NULL OR job.{queue}::text = ANY (%(queues)s::text[]))"
)
_NOT_FULL: Final = SQL(
    "coalesce(job.{stage}, '') <> ALL (ARRAY(\n"
    "    SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))"
)
_QUEUE_NOT_FULL: Final = SQL(
    "coalesce(job.{queue}::text, {default_queue}) <> ALL (ARRAY(\n"
    "    SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))"
)
_NOT_PAUSED: Final = SQL("coalesce({kind}, '') <> ALL ((SELECT paused FROM left_out)::text[])")
# An array that is unnested is hashed however large it is.
_NOT_REFUSED: Final = SQL("{key}::text NOT IN (SELECT unnest(refused) FROM left_out)")
# For one row, that would take longer than to look through the array.
_IS_NOT_REFUSED: Final = SQL("{key}::text <> ALL ((SELECT refused FROM left_out)::text[])")
_NOT_SENT_LATELY: Final = SQL(
    "(job.{dispatched_at} IS NULL\n"
    " OR job.{dispatched_at} < statement_timestamp() - make_interval(secs => %(again_sec)s))"
)
# What differs in the fragments of limits between tables without queues and with them.
_BY_LIMIT: Final = {
    "of_limit": (
        SQL("job.{stage} = limits.stage"),
        SQL("(job.{stage} = limits.stage OR job.{queue}::text = limits.queue)"),
    ),
    "is_full": (
        SQL("job.{stage} = ANY (ARRAY(SELECT stage FROM slots WHERE free <= 0))"),
        SQL(
            "(job.{stage} = ANY (ARRAY(SELECT stage FROM slots WHERE free <= 0))\n"
            "OR job.{queue}::text = ANY (ARRAY(SELECT queue FROM slots WHERE free <= 0)))"
        ),
    ),
    "queue_of_job": (SQL("NULL::text"), SQL("job.{queue}::text")),
}
# For the candidates that are tried one by one.
NOT_TRIED: Final = SQL("job.{id} <> ALL (%(skip)s::{id_type}[])")


class Which(Enum):
    """Which jobs a statement is for. PostgreSQL plans it anew each time, so one that is for less
    costs less.
    """

    NEXT = "the next due jobs"
    BY_KIND = "the next due jobs, found by the index by kind"
    NAMED = "the job whose key is the parameter id"
    EITHER = "the job whose key is the parameter id or, if that is NULL, the next due jobs"


def to_claim(
    table: Shape,
    parts: Parts,
    *,
    limited: bool,
    which: Which = Which.EITHER,
    among: Sequence[SQL] = (),
) -> Composed:
    """Return the jobs that a claim takes: of its stages, types and queues, without paused ones.
    Each of them also meets the conditions ``among``.
    """
    conditions = [*among, _OF_STAGES]
    conditions += [_OF_TYPES] if "type" in table.extras else []
    conditions += [_OF_QUEUES] if "queue" in table.extras else []
    if not limited:
        return _due(table, parts, conditions, which=which)
    of_verb = {"or_sent": "", "sent_in_vain": "sent_in_vain"}
    return _within_limits(table, parts, conditions, which=which, **of_verb)


def to_dispatch(
    table: Shape, parts: Parts, *, limited: bool, among: Sequence[SQL] = ()
) -> Composed:
    """Return the jobs to send: those that a claim of their stages would take and that were not sent
    recently. Each of them also meets the conditions ``among``.
    """
    conditions = [*among, _NOT_SENT_LATELY, _OF_STAGES]
    if not limited:
        return _due(table, parts, conditions)
    return _within_limits(table, parts, conditions, or_sent="or_sent", sent_in_vain="")


def _within_limits(
    table: Shape,
    parts: Parts,
    conditions: Sequence[SQL],
    *,
    which: Which = Which.EITHER,
    **of_verb: str,
) -> Composed:
    """Return as many due jobs of each stage and queue as may run besides the running ones.
    ``of_verb`` are the fragments of the verb, by part; an empty name stands for none.
    """
    has_queues = "queue" in table.extras
    parts = {**parts, "default_queue": Literal(DEFAULT_QUEUE)}
    for part, (without, with_queues) in _BY_LIMIT.items():
        parts[part] = (with_queues if has_queues else without).format(**parts)
    for part, fragment in of_verb.items():
        parts[part] = sql.compose(f"fragments/{fragment}", parts) if fragment else SQL("")
    parts = with_fragments(parts, "slots")
    not_full = [_NOT_FULL, *([_QUEUE_NOT_FULL] if has_queues else [])]
    parts["due_or_more"] = _due(
        table, parts, [*conditions, *not_full], picked=SQL("due_or_more"), which=which
    )
    return sql.compose("fragments/due_within_limits", parts)


def _due(
    table: Shape,
    parts: Parts,
    conditions: Sequence[SQL],
    *,
    picked: SQL = _DUE,
    which: Which = Which.EITHER,
) -> Composed:
    can_be_paused: list[Composable] = [SQL("job.{}").format(parts["stage"])]
    if "type" in table.extras:
        can_be_paused.append(SQL("job.{}::text").format(parts["type"]))
    if "queue" in table.extras:
        prefix = Literal(PAUSED_QUEUE_PREFIX)
        can_be_paused.append(SQL("{} || job.{}::text").format(prefix, parts["queue"]))
    parts = with_fragments(
        {**parts, "picked": picked, "verb_claim": Literal(Verb.CLAIM.value)},
        "left_out",
    )
    of_kind = [
        *(each.format(**parts) for each in conditions),
        *(_NOT_PAUSED.format(kind=kind) for kind in can_be_paused),
    ]
    not_refused = _IS_NOT_REFUSED if which is Which.NAMED else _NOT_REFUSED
    parts["is_not_refused"] = not_refused.format(**parts)
    parts["wanted"] = all_of([*of_kind, parts["is_not_refused"]])
    if which is Which.BY_KIND:
        return kinds.due_by_kind(table, parts, wanted_kind=all_of(of_kind))
    parts["and_stage"] = SQL("")
    if which is Which.NAMED:
        parts["and_stage"] = SQL(", job.{stage} AS stage").format(**parts)
        return sql.compose("fragments/due_named", with_fragments(parts, "named"))
    parts = with_fragments(parts, "named")
    if which is Which.NEXT:
        # A line with a part that is None is left out.
        without = dict.fromkeys(("named", "or_named", "of_no_key"))
        return _next(table, {**parts, **without, **kinds.look(table, parts)})
    parts["or_named"] = SQL("SELECT id FROM named UNION ALL")
    parts["of_no_key"] = SQL("%(id)s::{id_type} IS NULL").format(**parts)
    return _next(table, {**parts, **kinds.to_the_end(parts)})


def _next(table: Shape, parts: Mapping[str, Composable | None]) -> Composed:
    if "priority" not in table.extras:
        return sql.compose("fragments/due", parts)
    of_one_priority = [SQL("job.{} = present.priority")]
    # In somebody else's table, the model's declarations about NULL may be wrong.
    if table.extras["priority"].null or not table.model._meta.managed:
        of_one_priority.append(SQL("job.{} IS NULL AND present.priority IS NULL"))
    of_present = [
        sql.compose(
            "fragments/due_of_priority", {**parts, "has_priority": each.format(parts["priority"])}
        )
        for each in of_one_priority
    ]
    of_all = SQL("\n UNION ALL\n").join(of_present)
    return sql.compose("fragments/due_by_priority", {**parts, "of_present": of_all})
