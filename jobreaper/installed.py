"""The protocol inside the database: functions for workers in other languages, and views.

They are rendered from the same ``.sql`` files that Python sends.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.apps import AppConfig
from django.db import DataError, IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import SQL, Composable, Identifier
from psycopg.sql import Literal as SqlLiteral

from jobreaper import conf, rendering, sql
from jobreaper.base import LATE_AFTER_BEATS
from jobreaper.db import MOST_NAMED_ROWS, TRANSIENT_SQLSTATES, fetch
from jobreaper.dbobjects import MARK, Installed
from jobreaper.jobtable import JobTable
from jobreaper.states import Trigger

# PostgreSQL cuts a longer one, and cut names of one table are the same.
LONGEST_NAME: Final = 63
POLICIES: Final = "jobreaper_policies"

# The types of a function's arguments; the key's is the table's own.
_ARGUMENTS: Final = {
    "claim": "(text, int, text[], {})",
    "heartbeat": "({}, text, bigint)",
    "finish": "({}, text, bigint)",
    "release": "({}, text, bigint)",
    "fail": "({}, text, bigint, text, text)",
    "reap": "(int)",
    "reclaim_heartbeat": "({}, text)",
}

# What a verb's statement is given inside its function, in place of Python's parameters.
_CLAIM: Final = {
    "id": "{function}.job_id",
    "worker": "{function}.worker",
    "n": "{function}.n",
    "stages": "{function}.stages",
    "types": "NULL",
    "mark_us": "0",
    # Its lock is waited for as long as the caller's own lock_timeout says.
    "nested": "true",
    "timeout": "''",
}
_BEAT: Final = {
    "ids": "ARRAY[{function}.job_id]",
    "epochs": "ARRAY[held_epoch]",
    "workers": "ARRAY[{function}.worker]",
}
_ENDING: Final = {
    "id": "{function}.job_id",
    "epoch": "held_epoch",
    "worker": "{function}.worker",
    "stage": "NULL",
    "attempt": "NULL",
    "tried_before": "false",
    "ended_by": "NULL",
    "waited_ms": "0",
    "fail_code": "{function}.code",
    "fail_reason": "{function}.reason",
    "retry": "true",
    "delay_sec": "NULL::float8",
}
_REAP: Final = {
    "batch": "{function}.batch",
    "skip": "'{{}}'",
    "only": "NULL",
    "reaper": "('sql:' || pg_backend_pid())",
}
_REAP_ONE: Final = {**_REAP, "only": "ARRAY[candidate.id]"}
_REAP_NONE: Final = {**_REAP, "only": "'{{}}'"}
_REAP_UNTRIED: Final = {**_REAP, "skip": "this_call.tried"}
# How long a call looks for a row that can be written; it holds its locks as long.
SEARCH_TIME: Final = "interval '30 s'"


def policies(connection: BaseDatabaseWrapper) -> Installed:
    """Return ``jobreaper_policies()``, rendered from the present settings."""
    identifier = Identifier(_schemas(connection)[0], POLICIES)
    parts = {
        "function": identifier,
        "policy_columns": sql.compose("fragments/policy_columns", {}),
        "policies_json": SqlLiteral(conf.settings().policies_json),
    }
    return Installed("FUNCTION", identifier, sql.plain("functions/policies", parts), "()")


def of_table(table: JobTable, connection: BaseDatabaseWrapper) -> list[Installed]:
    """Return the functions and views of one job table, in the order they must be made."""
    maker = _Maker(table, _schemas(connection), connection.timezone_name)
    return [*maker.functions(), *maker.views()]


@dataclass(frozen=True)
class Drift:
    """A function or view in the database that is not as a fresh render has it."""

    name: str
    problem: str
    # What mends it, where installing anew does not.
    remedy: str | None = None


def drifted(
    connection: BaseDatabaseWrapper, tables: Iterable[JobTable], elsewhere: Iterable[JobTable] = ()
) -> list[Drift]:
    """Return what differs from a fresh render, is missing beside the others of its table, or
    belongs to no table; not even to one that is ``elsewhere``, whose database may be this one by
    another alias.
    """
    groups = [[policies(connection)], *(of_table(table, connection) for table in tables)]
    known = {made.name for table in elsewhere for made in of_table(table, connection)}
    found = [row for row in _found(connection) if row[0] not in known]
    names = {name for name, *_ in found}
    expected = {made.name: made for group in groups for made in group}
    drifts = [
        Drift(made.name, "is missing")
        for group in groups
        for made in group
        if made.name not in names and names & {other.name for other in group}
    ]
    for name, dropping, comment, *as_it_is in found:
        if name not in expected:
            remedy = f"Unless another project uses it: DROP {dropping};"
            drifts.append(Drift(name, "belongs to no job table", remedy))
        elif comment != expected[name].comment:
            drifts.append(Drift(name, "differs from this version or its settings"))
        elif expected[name].was_edited(*as_it_is):
            drifts.append(Drift(name, "was changed by hand"))
    return sorted(drifts, key=lambda drift: drift.name)


class Column(NamedTuple):
    """A column as it is. ``type`` is what a domain is made of, ``own_type`` the domain."""

    type: str
    own_type: str
    is_domain_of_enum: bool
    may_be_null: bool
    max_length: int | None


class TableAsItIs(NamedTuple):
    """A table as a session sees it."""

    columns: Mapping[str, Column]
    hides_rows: bool
    role: str


def table_as_it_is(table: JobTable, connection: BaseDatabaseWrapper) -> TableAsItIs | None:
    """Return what there is of a table in the database, ``None`` where the role finds no such
    table.
    """
    name = Identifier(*table.name_parts).as_string(None)
    schema = Identifier(*table.name_parts[:-1]).as_string(None) if table.name_parts[1:] else None
    params = {"table": name, "schema": schema}
    rows = fetch(connection, sql.render("statements/table_as_it_is"), params)
    if not rows:
        return None
    [(columns, *rest)] = rows
    by_name = {name: Column(**column) for name, column in json.loads(columns).items()}
    return TableAsItIs(by_name, *rest)


def takes(connection: BaseDatabaseWrapper, column: Column, word: str) -> bool:
    """Return whether a column can hold a word: an enum or a number takes not every one."""
    if column.max_length is not None and len(word) > column.max_length:
        return False
    try:
        with transaction.atomic(using=connection.alias):
            fetch(connection, f"SELECT %(word)s::text::{column.own_type}", {"word": word})
    except (DataError, IntegrityError):
        return False
    return True


def create_when_ready(table: JobTable, connection: BaseDatabaseWrapper) -> None:
    """Make the functions and views of a table, at the end of this ``migrate`` where the table does
    not have its present name or columns yet.
    """
    there = table_as_it_is(table, connection)
    if there is not None and set(table.columns.values()) <= there.columns.keys():
        _waiting.discard((connection.alias, table))
        for made in of_table(table, connection):
            made.create(connection)
    else:
        _waiting.add((connection.alias, table))


# By database, the tables that are to get their functions and views when they are ready.
_waiting: set[tuple[str, JobTable]] = set()


def create_what_waited(sender: AppConfig, using: str, **kwargs: Any) -> None:
    """Make what a migration came too early for; a receiver of ``post_migrate``."""
    for alias, table in [*_waiting]:
        if alias == using:
            create_when_ready(table, connections[using])


def render_policies_anew(sender: AppConfig, using: str, **kwargs: Any) -> None:
    """Bring ``jobreaper_policies()`` up to the present settings, where it is installed; a receiver
    of ``post_migrate``.
    """
    connection = connections[using]
    if sender.label != "jobreaper" or connection.vendor != "postgresql":
        return
    made = policies(connection)
    if any(
        name == made.name and comment != made.comment for name, _, comment, *_ in _found(connection)
    ):
        made.create(connection)


def _found(connection: BaseDatabaseWrapper) -> list[tuple[Any, ...]]:
    return fetch(connection, sql.render("statements/installed"), {"mark": f"{MARK}%"})


def _schemas(connection: BaseDatabaseWrapper) -> list[str]:
    # A table without a schema may be in any of them, and so may the events.
    [(schemas,)] = fetch(connection, "SELECT current_schemas(false)::text[]", {})
    return list(schemas) or ["public"]


def _as_template(value: str) -> str:
    return SqlLiteral(value).as_string(None).replace("{", "{{").replace("}", "}}")


class _Maker:
    """Renders the functions and views of one table, which live in the table's own schema."""

    def __init__(self, table: JobTable, schemas: Sequence[str], time_zone: str) -> None:
        self.table = table
        self.time_zone = time_zone
        *given, self.base = table.name_parts
        self.schema = given[0] if given else schemas[0]
        self.path = list(dict.fromkeys([self.schema, *schemas, "pg_temp"]))
        self.policy_rows = SQL("{}() AS policy").format(Identifier(schemas[0], POLICIES))

    def functions(self) -> Iterator[Installed]:
        if not self.table.can_be_leased:
            yield self._reap(rendering.reclaim, "reclaim")
            has_what_it_takes = {"last_heartbeat_at", "locked_by"} <= self.table.columns.keys()
            if has_what_it_takes and len(self.table.key_columns) == 1:
                parts = rendering.reclaim_parts(self.table)
                keys = {"id": Identifier(self.table.key_columns[0])}
                yield self._function("heartbeat", "reclaim_heartbeat", {**parts, **keys})
            return
        yield self._claim()
        beat = rendering.leased(self.table, "heartbeat", policy_rows=self.policy_rows)
        yield self._verb("heartbeat", _BEAT, [beat])
        for verb in ("finish", "release", "fail"):
            yield self._ending(verb)
        yield self._reap(rendering.reap, "reap", policy_rows=self.policy_rows)

    def views(self) -> Iterator[Installed]:
        if self.table.can_be_leased:
            late_after_sec = LATE_AFTER_BEATS * conf.settings().heartbeat_sec
            # Whoever reads a view needs no right to call a function: it holds the policies itself.
            policy_rows = SQL("jsonb_to_recordset({}::jsonb) AS policy ({})").format(
                SqlLiteral(conf.settings().policies_json),
                sql.compose("fragments/policy_columns", {}),
            )
            parts = rendering.leased_parts(self.table, policy_rows=policy_rows)
            parts["late_after_sec"] = SqlLiteral(late_after_sec)
            watched = sql.compose("fragments/watched_leases", parts)
        else:
            parts = rendering.reclaim_parts(self.table)
            if self.time_zone == "UTC":
                # A time is not to be read in the zone of whoever looks.
                parts["key_as_text"] = rendering.key_in_utc(self.table)
                parts["last_seen_at"] = SQL("to_timestamp(extract(epoch FROM {}))").format(
                    parts["last_seen_at"]
                )
            watched = sql.compose("fragments/watched_limits", parts)
        # Twice, and not one view on the other: either can be made anew by itself.
        monitor = sql.compose("fragments/monitor", {"watched": watched})
        yield self._view("stale_monitor", {"monitor": monitor})
        yield self._view("stale_validation", {"monitor": monitor})
        yield self._view("reclaim_history", {"table_name": SqlLiteral(self.table.name)})

    def _claim(self) -> Installed:
        changed = {"policy_rows": self.policy_rows, "claimed_columns": SQL("job.*")}
        settings = conf.settings()
        given = {
            **_CLAIM,
            "table": _as_template(self.table.name),
            "limits": _as_template(settings.limits_json),
        }
        if settings.limited_stages:
            lock = sql.render("statements/lock_claims")
            claim = rendering.limited(self.table, "claim", **changed)
            return self._verb("claim", given, [lock, claim])
        return self._verb("claim", given, [rendering.leased(self.table, "claim", **changed)])

    def _verb(self, verb: str, given: Mapping[str, str], statements: Iterable[str]) -> Installed:
        name = self._name(verb)
        inside = [self._inside(statement, given, name) for statement in statements]
        parts = {**self._leased_parts(name), "statement": SQL(";\n").join(inside)}
        return self._function(verb, verb, parts)

    def _ending(self, verb: str) -> Installed:
        name = self._name(verb)
        given = {**_ENDING, "verb": f"'{verb}'"}
        text = rendering.leased(self.table, verb, policy_rows=self.policy_rows)
        parts = self._leased_parts(name)
        parts["statement"] = self._inside(text, given, name)
        parts["reject"] = self._inside(rendering.leased(self.table, "reject"), given, name)
        parts["ending"] = sql.compose("functions/ending", parts)
        return self._function(verb, verb, parts)

    def _reap(self, render: Any, statement: str, **overriding: Composable) -> Installed:
        name = self._name("reap")
        text = render(self.table, statement, rendering.SKIP_LOCKED, **overriding)
        # By lot: a call cannot know what an earlier one has tried in vain.
        dry_run = render(
            self.table, f"{statement}_dry_run", rendering.NO_LOCK, by_lot=True, **overriding
        )
        grace_sec = conf.settings().recovery_grace_sec
        known = SQL("(SELECT array_agg(policy.stage) FROM {})").format(self.policy_rows)
        stages = {"known_stages": known.as_string(None)}
        parts: rendering.Parts = {
            "statement": self._inside(text, _REAP, name),
            "server_back": SQL(sql.render("statements/server_back")),
            "grace_sec": SqlLiteral(grace_sec),
            "grace_in_words": SqlLiteral(f"{grace_sec:g}"),
            "statement_for_one": self._inside(text, _REAP_ONE, name),
            "statement_for_none": self._inside(text, _REAP_NONE, name),
            "candidates": self._inside(dry_run, _REAP_UNTRIED, name),
            "id_type": SQL(rendering.id_type(self.table)),
            "transient_sqlstates": SQL(", ").join(map(SqlLiteral, sorted(TRANSIENT_SQLSTATES))),
            "search_time": SQL(SEARCH_TIME),
            "most_named_rows": SqlLiteral(MOST_NAMED_ROWS),
            "reaped_row": sql.compose("fragments/reaped_row", {"function": self._label(name)}),
            "trigger_sql": SqlLiteral(Trigger.SQL.value),
            "table_name": SqlLiteral(self.table.name),
            "fold_totals": self._inside(rendering.totals("fold_totals"), stages, name),
        }
        return self._function("reap", "reap", parts)

    def _leased_parts(self, name: Identifier) -> rendering.Parts:
        parts = {**rendering.leased_parts(self.table), "function": self._label(name)}
        parts["epoch_of_worker"] = sql.compose("fragments/epoch_of_worker", parts)
        return parts

    def _function(self, verb: str, file: str, parts: Mapping[str, Composable]) -> Installed:
        name = self._name(verb)
        search_path = SQL(", ").join([Identifier(schema) for schema in self.path])
        label = self._label(name)
        # Inside, a parameter is qualified by the function's bare name.
        fixed = {"search_path": search_path, "time_zone": SqlLiteral(self.time_zone)}
        source = sql.plain(f"functions/{file}", {**parts, **fixed, "function": label})
        bare, whole = label.as_string(None), name.as_string(None)
        source = source.replace(f"FUNCTION {bare}(", f"FUNCTION {whole}(")
        arguments = _ARGUMENTS[file].format(rendering.id_type(self.table))
        return Installed("FUNCTION", name, source, arguments)

    def _view(self, suffix: str, parts: Mapping[str, Composable]) -> Installed:
        name = self._name(suffix)
        return Installed("VIEW", name, sql.plain(f"views/{suffix}", {**parts, "view": name}))

    def _name(self, verb: str) -> Identifier:
        own = self.table.installed_name(verb)
        if len(own.encode()) > LONGEST_NAME:
            digest = hashlib.sha256(self.base.encode()).hexdigest()[:8]
            room = LONGEST_NAME - len(f"_{digest}_{verb}")
            own = f"{self.base.encode()[:room].decode(errors='ignore')}_{digest}_{verb}"
        return Identifier(self.schema, own)

    def _label(self, name: Identifier) -> Identifier:
        return Identifier(name._obj[-1])

    def _inside(self, statement: str, given: Mapping[str, str], name: Identifier) -> Composable:
        """Return a statement with its parameters replaced by what the function was given."""
        label = self._label(name).as_string(None)

        def filled(match: re.Match[str]) -> str:
            return given[match[1]].format(function=label) if match[1] else "%"

        return SQL(re.sub(r"%\((\w+)\)s|%%", filled, statement))
