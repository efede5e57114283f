"""The parts of a table that statements name: its columns, its words, its key, its policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString

from django.db import models
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from jobreaper import sql
from jobreaper.db import SUPPRESSED
from jobreaper.states import FailCode, Status, Verb
from jobreaper.tables.shape import Shape, table_fields
from jobreaper.tables.statements import progress

Parts = dict[str, Composable]

# As left() takes it.
LONGEST_TEXT: Final = 2**31 - 1

# Set to "none" by some verb.
_EMPTIED_TEXTS: Final = ("locked_by", "fail_code", "fail_reason")


def leased_parts(table: Shape, **overriding: Composable) -> Parts:
    """Return the common parts of the statements of a table with leases. ``overriding`` parts
    replace those of the same name.
    """
    has_priority = "priority" in table.extras
    parts = {
        **common_parts(table),
        **{name: Identifier(str(own.column)) for name, own in table.extras.items()},
        "id": Identifier(table.key_columns[0]),
        "stage": _stage(table),
        "columns": SQL(",\n").join(_selected(table)),
        "attempts_of_job": attempts(table, {}),
        "by_priority": SQL(""),
        "table_ttl_sec": SQL("{}::float8").format(Literal(table.ttl_sec)),
        # For a row of the table, and for a row of an expression with the protocol's own names.
        "policy_of_row": _policy_of(_stage(table)),
        "policy_of_job": _policy_of(Identifier("stage")),
    }
    if has_priority:
        parts["by_priority"] = SQL("job.{} DESC NULLS LAST, ").format(parts["priority"])
    parts["policy_rows"] = SQL("jsonb_to_recordset(%(policies)s::jsonb) AS policy ({})").format(
        sql.compose("fragments/policy_columns", {})
    )
    parts |= progress.of_table(table, parts)
    parts |= overriding
    fragments = ("policies", "unlock", "chosen", "session_now", "in_session")
    return {**with_fragments(parts, *fragments), **overriding}


def _selected(table: Shape) -> list[Composable]:
    """Return the columns of ``job`` as the ORM selects them: a field may put an expression in the
    place of its column, such as one that decrypts.
    """
    compiler = _compiler(table)
    found: list[Composable] = []
    for own in table_fields(table.model):
        column = own.get_col("job")
        text, params = column.select_format(compiler, *compiler.compile(column))
        plain = Identifier("job", str(own.column))
        found.append(plain if text == plain.as_string(None) else _merged(text, params))
    return found


def key_as_read(table: Shape, key: Composable) -> Composable:
    """Return the columns that ``read_pk()`` needs beside ``key``, each after a comma: the columns
    of a composite key, and what a field's ``select_format()`` makes of its column.
    """
    compiler = _compiler(table)
    found: list[Composable] = []
    for place, own in enumerate(table.model._meta.pk_fields):
        source = key
        if table.has_composite_key:
            source = SQL("({}::jsonb ->> {})::{}").format(
                key, Literal(place), SQL(column_type(own, table))
            )
        plain = source.as_string(None)
        text, params = own.get_col("job").select_format(compiler, plain, ())
        if table.has_composite_key or text != plain:
            name = Identifier(f"read_{place}")
            found.append(SQL(", {} AS {}").format(_merged(text, params), name))
    return Composed(found)


def column_type(own: models.Field[Any, Any], table: Shape) -> str:
    """Return the type of a field's column in statements."""
    return own.rel_db_type(table.connection()) or "text"


def _compiler(table: Shape) -> Any:
    return table.model._base_manager.using(table.alias).query.get_compiler(table.alias)


def _merged(text: str, params: Sequence[Any]) -> Composed:
    """Return an expression of the ORM's with its parameters in their places."""
    before, *behind = text.split("%s")
    pieces: list[Composable] = [SQL(before)]
    for value, piece in zip(params, behind, strict=True):
        pieces += [Literal(value), SQL(piece)]
    return Composed(pieces)


def common_parts(table: Shape) -> Parts:
    """Return the parts that the statements of every job table name."""
    keys = [Identifier(column) for column in table.key_columns]
    single = len(keys) == 1
    parts: Parts = {
        **table.own_tables,
        "table": table.identifier,
        # Where the rows of a verb are looked for.
        "among": table.identifier,
        "table_name": Literal(table.name),
        "id_type": SQL(id_type(table)),
        "key": SQL("job.{}").format(keys[0]) if single else key_as_text(keys),
        "key_as_read": key_as_read(table, SQL("id")),
        **{part: Identifier(column) for part, column in table.columns.items()},
        **{status.value: Literal(table.word(status)) for status in table.words},
        **{f"no_{part}": _nothing(table, part) for part in _EMPTIED_TEXTS},
        "max_attempts_of_job": SQL("coalesce({}, {})").format(
            read(table, "max_attempts", "int"), Literal(table.max_attempts)
        ),
        # If a text did not fit, its job could never be given back or failed.
        "longest_fail_reason": Literal(table.max_length("fail_reason") or LONGEST_TEXT),
        "longest_fail_code": Literal(table.max_length("fail_code") or LONGEST_TEXT),
        # Not with left(): the column of a table without leases may be an enum.
        "stored_timeout": Literal(FailCode.TIMEOUT.value[: table.max_length("fail_code")]),
        "is_queued": has_status(table, Status.QUEUED),
        "is_processing": has_status(table, Status.PROCESSING),
        "touched": SQL("\n").join(
            [
                SQL("{} = statement_timestamp(),").format(Identifier(column))
                for column in table.touched
            ]
        ),
    }
    parts["not_refused"] = not_refused(parts, Verb.REAP)
    return with_fragments(parts, "event_data", "recorded")


def not_refused(parts: Mapping[str, Composable], verb: Verb) -> Composed:
    """Return the condition that ``job`` is not one of the rows that ``verb`` could not write.
    ``parts`` are those of a table. If there are no such rows, as usual, no job is looked up.
    """
    return sql.compose("fragments/not_refused", {**parts, "verb": Literal(verb.value)})


def with_fragments(parts: Parts, *names: str) -> Parts:
    """Return ``parts`` with these fragments; each may name those before it."""
    parts = {**parts}
    for name in names:
        parts[name] = sql.compose(f"fragments/{name}", parts)
    return parts


def all_written(written: LiteralString, *, of: Composable) -> Composed:
    """Return the condition that a statement's CTE ``written`` has each row ``of`` another. If a
    trigger or a rule has kept some from being written, it is an error.
    """
    parts = {"written": SQL(written), "taken": of, "suppressed": Literal(SUPPRESSED)}
    return sql.compose("fragments/all_written", parts)


def all_of(conditions: Sequence[Composable]) -> Composed:
    """Return the condition that all of these are true, one per line."""
    return SQL("\nAND ").join(conditions)


def id_type(table: Shape) -> str:
    """Return the type of a job's key in statements, without its length: a cast would shorten a
    longer key to that of another job. A composite key is text.
    """
    if len(table.key_columns) > 1:
        return "text"
    own = column_type(table.pk, table)
    # The length comes after the name, and the time zone after the length.
    before, _, behind = own.partition("(")
    bare = " ".join([*before.split(), *behind.partition(")")[2].split()])
    # A char without a length contains only one character.
    return "bpchar" if bare in ("char", "character") else bare


def has_status(table: Shape, status: Status) -> Composable:
    """Return the condition that ``job`` has ``status``, in a form for which a partial index can be
    used.
    """
    column = Identifier(table.columns["status"])
    words = [Literal(word) for word in table.words[status]]
    if len(words) == 1:
        return SQL("job.{} = {}").format(column, words[0])
    return SQL("job.{} IN ({})").format(column, SQL(", ").join(words))


def digest(text: Composable) -> Composable:
    """Return the digest of a dedupe key, as the unique index has it."""
    return sql.compose("frozen/digest", {"text": text})


def key_in_utc(table: Shape) -> Composable:
    """Return the key of ``job`` as text, as in a session with the time zone UTC."""
    if not table.has_composite_key:
        return key_as_text([Identifier(table.key_columns[0])])
    values: list[Composable] = []
    for own in table.model._meta.pk_fields:
        value = SQL("job.{}").format(Identifier(str(own.column)))
        is_time = isinstance(own, models.DateTimeField)
        values.append(sql.compose("fragments/time_in_utc", {"time": value}) if is_time else value)
    return SQL("jsonb_build_array({})::text").format(SQL(", ").join(values))


def key_as_text(keys: list[Identifier]) -> Composable:
    """Return the key of ``job`` as text; several columns become the JSON array of their values."""
    columns = [SQL("job.{}").format(key) for key in keys]
    if len(columns) == 1:
        return SQL("{}::text").format(columns[0])
    return SQL("jsonb_build_array({})::text").format(SQL(", ").join(columns))


def read(table: Shape, part: str, kind: LiteralString) -> Composable:
    """Return a part of ``job``, or NULL if the table has no column for it. A worker may be a uuid,
    a stage a number or an enum.
    """
    if part in table.columns:
        return SQL("job.{}::{}").format(Identifier(table.columns[part]), SQL(kind))
    return SQL("NULL::{}").format(SQL(kind))


def attempts(table: Shape, parts: Mapping[str, Composable]) -> Composable:
    """Return how many attempts ``job`` has had, including the one that runs. They are counted from
    the events if the table does not count, so that a job that kills its workers still ends.
    """
    if "attempt_count" in table.columns:
        earlier_only = not table.can_be_leased and table.counts_reaps
        counted = SQL("coalesce({}, 0) + 1") if earlier_only else SQL("coalesce({}, 0)")
        return counted.format(read(table, "attempt_count", "int"))
    return sql.compose("fragments/attempts_by_events", parts)


def _nothing(table: Shape, part: str) -> Composable:
    """Return the value for "none" in a part's column: Django's own texts are empty, not NULL."""
    return SQL("NULL" if table.is_nullable(part) else "''")


def _stage(table: Shape) -> Composable:
    """Return what reads the stage of a row as text: it may be a number, or an enum that the model
    takes for text.
    """
    column = Identifier(table.columns["stage"])
    is_text = table.is_text("stage") and table.model._meta.managed
    return column if is_text else SQL("{}::text").format(column)


def _policy_of(stage: Composable) -> Composed:
    return SQL(
        "policy.stage = CASE WHEN job.{0} IN (SELECT stage FROM policies) THEN job.{0} ELSE '' END"
    ).format(stage)
