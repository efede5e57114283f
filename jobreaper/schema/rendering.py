"""The functions and views of one job table, from the same ``.sql`` files that Python sends."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from psycopg.sql import SQL, Composable, Identifier
from psycopg.sql import Literal as SqlLiteral

from jobreaper import conf, sql
from jobreaper.base import LATE_AFTER_BEATS
from jobreaper.db import MOST_NAMED_ROWS
from jobreaper.progress import LARGEST_NUMBER, LONGEST_NOTE
from jobreaper.schema.objects import Installed
from jobreaper.schema.place import Place
from jobreaper.states import Trigger, Verb
from jobreaper.tables import HIDDEN, refused, statements
from jobreaper.tables.jobtable import JobTable

POLICIES: Final = "jobreaper_policies"

# PostgreSQL truncates longer names, and the truncated names of one table would be equal.
LONGEST_NAME: Final = 63

# The types of a function's arguments. The key has the table's own type.
_ARGUMENTS: Final = {
    "claim": "(text, int, text[], {})",
    "heartbeat": "({}, text, bigint)",
    "progress": "({}, text, bigint, float8, float8, text)",
    "finish": "({}, text, bigint)",
    "release": "({}, text, bigint)",
    "fail": "({}, text, bigint, text, text)",
    "reap": "(int)",
    "reclaim_heartbeat": "({}, text)",
}

# The names of some of these arguments.
_PARAMETERS: Final = {
    "heartbeat": "job_id {id_type}, worker text, epoch bigint DEFAULT NULL",
    "progress": "job_id {id_type}, worker text, epoch bigint, done float8, "
    "total float8 DEFAULT NULL, note text DEFAULT NULL",
    "finish": "job_id {id_type}, worker text, epoch bigint DEFAULT NULL",
    "release": "job_id {id_type}, worker text, epoch bigint DEFAULT NULL",
    "fail": "job_id {id_type}, worker text, epoch bigint, code text, reason text",
}

# The values of a verb's statement inside its function, instead of Python's parameters.
_CLAIM: Final = {
    "id": "{function}.job_id",
    "worker": "{function}.worker",
    "n": "this_call.most",
    "stages": "{function}.stages",
    "types": "NULL",
    "queues": "NULL",
    "mark_us": "0",
    # The caller's own lock_timeout says how long to wait for its lock.
    "nested": "true",
    "timeout": "''",
    # For the jobs that are tried one by one.
    "verb": f"'{Verb.CLAIM}'",
    "skip": "this_call.tried",
    "keys": "this_call.refused",
    "errors": "this_call.refusals",
}
_BEAT: Final = {
    "ids": "ARRAY[{function}.job_id]",
    "epochs": "ARRAY[held_epoch]",
    "workers": "ARRAY[{function}.worker]",
    "progress": "ARRAY[jsonb_strip_nulls(jsonb_build_object('done', {function}.done, 'total', "
    f"{{function}}.total, 'note', left({{function}}.note, {LONGEST_NOTE})))::text]",
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
    "exception": "NULL",
    "traceback": "NULL",
    "result": "NULL",
    "report": "NULL",
    "retry": "true",
    "delay_sec": "NULL::float8",
}
# How long a call searches for a row that can be written, and so holds its locks.
SEARCH_SEC: Final = 30
_REAP: Final = {
    "batch": "{function}.batch",
    "skip": "this_call.skipped",
    "again": "this_call.again",
    "silent_by": "this_call.silent_by",
    "reaper": "('sql:' || pg_backend_pid()::text)",
    # For the rows that cannot be written.
    "verb": f"'{Verb.REAP}'",
    "keys": "this_call.refused",
    "errors": "this_call.refusals",
    "written": "this_call.written",
    "locked": "this_call.locked",
    "all_tried": "this_call.tried - this_call.tried_before < {function}.batch",
    "before": "statement_timestamp()",
}


def _as_template(value: str) -> str:
    return SqlLiteral(value).as_string(None).replace("{", "{{").replace("}", "}}")


class Maker:
    """Renders the functions and views of one table, which are in the table's schema."""

    def __init__(self, table: JobTable, place: Place, time_zone: str) -> None:
        self.table = replace(table, schemas=place.schemas)
        self.time_zone = time_zone
        *given, self.base = table.name_parts
        self.schema = given[0] if given else place.first
        self.path = place.search_path
        self.policy_rows = SQL("{}() AS policy").format(Identifier(place.first, POLICIES))

    def functions(self) -> Iterator[Installed]:
        """Yield the functions that workers in other languages call, and the one that runs
        a pass.
        """
        if not self.table.can_be_leased:
            yield self._reap()
            has_what_it_takes = {"last_heartbeat_at", "locked_by"} <= self.table.columns.keys()
            if has_what_it_takes and len(self.table.key_columns) == 1:
                parts = statements.reclaim_parts(self.table)
                keys = {"id": Identifier(self.table.key_columns[0])}
                yield self._function("heartbeat", "reclaim_heartbeat", {**parts, **keys})
            return
        yield self._claim()
        yield self._heartbeat()
        if self.table.tracks_progress:
            yield self._progress()
        for verb in ("finish", "release", "fail"):
            yield self._ending(verb)
        yield self._reap(policy_rows=self.policy_rows)

    def views(self) -> Iterator[Installed]:
        """Yield the views that show operators the state of the table."""
        if self.table.can_be_leased:
            late_after_sec = LATE_AFTER_BEATS * conf.settings().heartbeat_sec
            # A role that reads a view needs no right to call a function: the view contains the
            # policies.
            policy_rows = SQL("jsonb_to_recordset({}::jsonb) AS policy ({})").format(
                SqlLiteral(conf.settings().policies_json),
                sql.compose("fragments/policy_columns", {}),
            )
            parts = statements.leased_parts(self.table, policy_rows=policy_rows)
            parts["late_after_sec"] = SqlLiteral(late_after_sec)
            parts["progress_columns"] = statements.progress_columns(self.table)
            watched = sql.compose("fragments/watched_leases", parts)
        else:
            parts = statements.reclaim_parts(self.table)
            if self.time_zone == "UTC":
                # A time must not be read in the time zone of the session.
                parts["key_as_text"] = statements.key_in_utc(self.table)
                parts["last_seen_at"] = SQL("to_timestamp(extract(epoch FROM {}))").format(
                    parts["last_seen_at"]
                )
            parts["progress_columns"] = statements.progress_columns(self.table)
            watched = sql.compose("fragments/watched_limits", parts)
        # Twice, and not one view on the other, so that each can be created again by itself.
        yield self._view("stale_monitor", "stale", {"watched": watched, "shown": SQL("true")})
        beyond = SQL("age_sec > 2 * limit_sec")
        yield self._view("stale_validation", "stale", {"watched": watched, "shown": beyond})
        history = {**self.table.own_tables, "table_name": SqlLiteral(self.table.name)}
        yield self._view("reclaim_history", "reclaim_history", history)

    def _claim(self) -> Installed:
        name = self._name("claim")
        settings = conf.settings()
        is_limited = settings.limits_any_of(None)
        render = statements.limited if is_limited else statements.leased
        changed = {"policy_rows": self.policy_rows, "claimed_columns": SQL("job.*")}
        given = {
            **_CLAIM,
            "table": _as_template(self.table.name),
            "limits": _as_template(settings.limits_json),
        }
        claim = render(self.table, "claim_either", **changed)
        for_one = {"id": "candidate.id", "n": "1"}
        parts: statements.Parts = {
            **self._leased_parts(name),
            **self._one_by_one_parts(),
            "search_sec": SqlLiteral(refused.LONGEST_CLAIM_SEARCH_SEC),
            "lock_claims": SQL(""),
            "statement": self._inside(claim, given, name),
            "statement_for_one": self._inside(claim, {**given, **for_one}, name),
            "candidates": self._inside(render(self.table, "claim_candidates"), given, name),
            "remember_refused": self._inside(
                refused.statement("remember_refused", **self.table.own_tables), given, name
            ),
        }
        if is_limited:
            lock = self._inside(sql.render("statements/lock_claims"), given, name)
            parts["lock_claims"] = SQL("{}\nINTO taken;").format(lock)
        parts["note_taken"] = sql.compose("fragments/note_claimed", parts)
        parts["note_refused"] = sql.compose("fragments/note_not_claimed", parts)
        parts["one_by_one"] = sql.compose("fragments/one_by_one", parts)
        return self._function("claim", "claim", parts)

    def _heartbeat(self) -> Installed:
        name = self._name("heartbeat")
        return self._beating("heartbeat", "heartbeat", self._leased_parts(name))

    def _progress(self) -> Installed:
        parts = self._leased_parts(self._name("progress"))
        parts["largest_number"] = SqlLiteral(LARGEST_NUMBER)
        parts["checked"] = sql.compose("fragments/checked_progress", parts)
        return self._beating("progress", "heartbeat_with_progress", parts)

    def _beating(self, verb: str, statement: str, parts: statements.Parts) -> Installed:
        beat = statements.leased(self.table, statement, policy_rows=self.policy_rows)
        parts = {"checked": SQL(""), **parts}
        parts["statement"] = self._inside(beat, _BEAT, self._name(verb))
        parts["parameters"] = SQL(_PARAMETERS[verb]).format(**parts)
        return self._function(verb, "heartbeat", parts)

    def _ending(self, verb: str) -> Installed:
        name = self._name(verb)
        given = {**_ENDING, "verb": f"'{verb}'"}
        # Its caller's session is the worker's.
        session = {"in_session": SQL("true")}
        text = statements.leased(self.table, verb, policy_rows=self.policy_rows, **session)
        parts = {**self._leased_parts(name), **refused.parts_of(self.table)}
        parts["statement"] = self._inside(text, given, name)
        parts["reject"] = self._inside(
            statements.leased(self.table, "reject", **session), given, name
        )
        parts["parameters"] = SQL(_PARAMETERS[verb]).format(**parts)
        return self._function(verb, "end", parts)

    def _reap(self, **overriding: Composable) -> Installed:
        name = self._name("reap")
        grace_sec = conf.settings().recovery_grace_sec
        known = SQL("(SELECT array_agg(policy.stage) FROM {})").format(self.policy_rows)
        stages = {"known_stages": known.as_string(None)}
        parts: statements.Parts = {
            "server_back": SQL(sql.render("statements/server_back", self.table.own_tables)),
            "grace_sec": SqlLiteral(grace_sec),
            "grace_in_words": SqlLiteral(f"{grace_sec:g}"),
            "search_sec": SqlLiteral(SEARCH_SEC),
            "most_named_rows": SqlLiteral(MOST_NAMED_ROWS),
            "reaped_row": sql.compose("fragments/reaped_row", {"function": self._label(name)}),
            "hides_rows": sql.compose("fragments/hides_rows", {}),
            "said_hidden": SqlLiteral(HIDDEN),
            "trigger_sql": SqlLiteral(Trigger.SQL.value),
            "look_around": self._look_around(name, grace_sec, overriding),
            "fold_totals": self._inside(
                statements.totals("fold_totals", **self.table.own_tables), stages, name
            ),
            **self._one_by_one_parts(),
        }
        text = statements.one_pass(self.table, key_as_read=SQL(""), **overriding)
        parts["statement"] = self._inside(text, {**_REAP, "batch": "this_call.most"}, name)
        given = {**_REAP, "table": _as_template(self.table.name)}
        for verb in ("remember_refused", "forget_refused", "due_refused"):
            parts[verb] = self._inside(
                refused.statement(verb, **self.table.own_tables), given, name
            )
        one_by_one = refused.pass_one_by_one(self.table, **overriding)
        parts["candidates"], parts["statement_for_one"] = (
            self._inside(text, _REAP, name) for text in one_by_one
        )
        parts["note_taken"] = sql.compose("fragments/note_reaped", parts)
        parts["note_refused"] = sql.compose("fragments/note_not_reaped", parts)
        parts["one_by_one"] = sql.compose("fragments/one_by_one", parts)
        return self._function("reap", "reap", parts)

    def _one_by_one_parts(self) -> statements.Parts:
        parts: statements.Parts = {
            **refused.parts_of(self.table),
            "table_in_text": SqlLiteral(self.table.identifier.as_string(None)),
            "events_in_text": SqlLiteral(self.table.own_tables["job_events"].as_string(None)),
            "check_now": sql.compose("fragments/check_now", {}),
        }
        parts["deferred_checks"] = sql.compose("fragments/deferred_checks", parts)
        return parts

    def _look_around(
        self, name: Identifier, grace_sec: float, overriding: Mapping[str, Composable]
    ) -> Composable:
        """Return what sees whether workers have fallen silent together."""
        if not (grace_sec and statements.shows_silence(self.table)):
            return SQL("")
        any_verdict = statements.dry_run(self.table, **overriding)
        values = {"grace_sec": grace_sec, "heartbeat_sec": conf.settings().heartbeat_sec}
        given = {key: f"{value!r}::float8" for key, value in values.items()}
        given["up_sec"] = "this_call.server.up_sec"
        parts = {
            "any_verdict": self._inside(any_verdict, {**_REAP, "batch": "1"}, name),
            "look": self._inside(statements.silence([self.table]), given, name),
        }
        return sql.compose("fragments/look_around", parts)

    def _leased_parts(self, name: Identifier) -> statements.Parts:
        parts = {**statements.leased_parts(self.table), "function": self._label(name)}
        return {**parts, "held_epoch": sql.compose("fragments/held_epoch", parts)}

    def _function(self, verb: str, file: str, parts: Mapping[str, Composable]) -> Installed:
        name = self._name(verb)
        fixed = {
            "name": name,
            # Inside a function, a parameter is qualified by the function's name without schema.
            "function": self._label(name),
            "search_path": self.path,
            "time_zone": SqlLiteral(self.time_zone),
        }
        source = sql.plain(f"functions/{file}", {**parts, **fixed})
        arguments = _ARGUMENTS[file if file == "reclaim_heartbeat" else verb]
        return Installed("FUNCTION", name, source, arguments.format(statements.id_type(self.table)))

    def _view(self, suffix: str, file: str, parts: Mapping[str, Composable]) -> Installed:
        name = self._name(suffix)
        return Installed("VIEW", name, sql.plain(f"views/{file}", {**parts, "view": name}))

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
        """Return a statement with its parameters replaced by the function's arguments."""
        label = self._label(name).as_string(None)
        return SQL(statement % {key: text.format(function=label) for key, text in given.items()})
