"""Rows that cannot be written, for example because a constraint or a trigger of the project refuses
them.

They are remembered in ``jobreaper_refused_rows`` and left out for a while. So such a row costs only
an occasional try, and does not stop the others. ``statements.not_refused()`` is the condition that
leaves them out. If the statement of a verb fails, its candidates are tried one by one, in one round
trip.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import ClientCursor
from psycopg.sql import SQL, Composable, Identifier, Literal, Placeholder

from jobreaper import sql
from jobreaper.db import (
    CLASSES_WITH_VALUES,
    LONGEST_LINE,
    MOST_NAMED_ROWS,
    STATES_WITH_VALUES,
    STATES_WITHOUT_VALUES,
    SUPPRESSED_PATTERN,
    SURROUNDINGS,
    TRANSIENT_SQLSTATES,
    fetch,
    fetch_within,
    in_transaction,
    sent_as_it_is,
    timeouts,
    with_condition,
)
from jobreaper.states import Verb
from jobreaper.tables import statements
from jobreaper.tables.jobtable import JobTable

# How long a row is left out: at first, doubling with each further try, and at most.
FIRST_PAUSE: Final = "1 minute"
LONGEST_PAUSE: Final = "1 hour"

# How long a claim or a dispatch takes jobs one by one, if a row among them cannot be written.
LONGEST_CLAIM_SEARCH_SEC: Final = 2.0

LOCK_TIMEOUT_SEC: Final = 1.0
STATEMENT_TIMEOUT_SEC: Final = 10.0

_CURSOR: Final = "jobreaper_tried"


class RefusedRow(NamedTuple):
    """A row that could not be written: since when, why, how often, and when it is tried again.
    ``key`` is the job's key as text.
    """

    key: str
    since: datetime
    error: str
    tries: int
    next_try_at: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        times = {"since": self.since.isoformat(), "next_try_at": self.next_try_at.isoformat()}
        return {**self._asdict(), **times}


class Refused(NamedTuple):
    """The rows of a table that could not be written: the next ones to try again, how many there
    are, how many of them are due to be reaped at ``now``, the database's time, and how many could
    not be claimed.
    """

    rows: Sequence[RefusedRow] = ()
    total: int = 0
    due: int = 0
    to_claim: int = 0
    now: datetime | None = None


class Tried(NamedTuple):
    """The result for one candidate: ``refusal`` is the error, ``row`` what the statement returned.
    Both are missing if another transaction has locked it, or it is no longer a candidate.
    """

    key: str
    pk: Any
    refusal: str | None
    row: tuple[Any, ...] | None


def one_by_one(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: Mapping[str, Any],
    *,
    search_sec: float,
    lock_timeout_sec: float,
    statement_timeout_sec: float,
    check: Callable[[list[tuple[Any, ...]]], object] | None = None,
) -> list[Tried]:
    """Send a statement of ``one_by_one_statement()``, which tries candidates for at most
    ``search_sec``, and return the result of each. If ``check`` raises an exception for the rows,
    everything is rolled back.

    Raises:
        django.db.Error: the problem is not a row; nothing was written.
    """
    nested = in_transaction(connection)
    with (
        timeouts(connection, lock_sec=lock_timeout_sec, statement_sec=statement_timeout_sec),
        connection.cursor() as cursor,
    ):
        # DO takes no parameters.
        merged = ClientCursor(connection.connection).mogrify(
            statement, {**params, "search_sec": search_sec, "nested": nested}
        )
        whole = SQL("DO {}").format(Literal(merged)).as_string(connection.connection)
        cursor.execute(*sent_as_it_is(connection, whole))
        cursor.execute(f"FETCH ALL FROM {_CURSOR}")
        tried = [_tried(*row) for row in cursor.fetchall()]
        cursor.execute(f"CLOSE {_CURSOR}")
        if check is not None:
            check([each.row for each in tried if each.row is not None])
    return tried


def _tried(key: str, refusal: str | None, *row: Any) -> Tried:
    # A change of a job has a reason.
    is_done = refusal is None and row[2] is not None
    said = None if refusal is None else with_condition(refusal)
    return Tried(key, row[0], said, row if is_done else None)


def one_by_one_statement(table: JobTable, candidates: str, for_one: str) -> str:
    """Return the body of a DO that sends ``for_one`` for each row of ``candidates``."""
    parts = {
        **parts_of(table),
        "candidates": SQL(candidates),
        "key_as_read": statements.key_as_read(table, SQL("one.id")),
        "statement_for_one": SQL(for_one),
        "cursor": Literal(_CURSOR),
        "search_sec": Placeholder("search_sec"),
    }
    for name in ("note_taken", "note_refused", "one_by_one"):
        parts[name] = sql.compose(f"fragments/{name}", parts)
    return sql.render("statements/one_by_one", parts)


def parts_of(table: JobTable) -> statements.Parts:
    """Return the parts of the statements about rows that cannot be written."""
    states = SQL(", ").join(map(Literal, sorted(TRANSIENT_SQLSTATES)))
    classes = SQL(", ").join(map(Literal, SURROUNDINGS))
    told: statements.Parts = {
        "classes_with_values": SQL(", ").join(map(Literal, CLASSES_WITH_VALUES)),
        "states_with_values": SQL(", ").join(map(Literal, STATES_WITH_VALUES)),
        "states_without_values": SQL(", ").join(map(Literal, STATES_WITHOUT_VALUES)),
        "suppressed": Literal(SUPPRESSED_PATTERN),
        "longest_line": Literal(LONGEST_LINE),
    }
    return {
        "words_of_error": sql.compose("fragments/words_of_error", told),
        **table.own_tables,
        "table_name": Literal(table.name),
        "id_type": SQL(statements.id_type(table)),
        "is_no_rows_fault": SQL("SQLSTATE IN ({}) OR left(SQLSTATE, 2) IN ({})").format(
            states, classes
        ),
    }


def pass_one_by_one(table: JobTable, **overriding: Composable) -> tuple[str, str]:
    """Return the statements of a pass for the candidates and for one of them. Their parameter
    ``again`` requests the rows that are due for another try.
    """
    # Added when all have been tried.
    overriding["key_as_read"] = SQL("")
    leased = table.can_be_leased
    parts = statements.leased_parts(table) if leased else statements.reclaim_parts(table)
    parts["verb"] = Literal(Verb.REAP.value)
    parts["tried_again"] = sql.compose("fragments/tried_again", parts)
    chosen = sql.compose("fragments/chosen_one_by_one", parts)
    candidates = statements.dry_run(table, chosen=chosen, **overriding)
    of_one: dict[str, Composable] = {"among": row_of_candidate(table), "chosen": SQL("true")}
    return candidates, statements.one_pass(table, **overriding, **of_one)


def row_of_candidate(table: JobTable) -> Composable:
    """Return the row of ``candidate``, found by the index of its key.

    OFFSET 0 hides the status from the planner: if no job was running when the table was last
    analyzed, it would take the index of the running ones for empty, and read all of it each time.
    """
    return SQL("(SELECT * FROM {} AS job WHERE {} OFFSET 0)").format(
        table.identifier, _is_candidate(table)
    )


def _is_candidate(table: JobTable) -> Composable:
    if not table.has_composite_key:
        return SQL("job.{} = candidate.id").format(Identifier(table.key_columns[0]))
    return SQL(" AND ").join(
        SQL("job.{} = (candidate.id::jsonb ->> {})::{}").format(
            Identifier(str(own.column)), Literal(place), SQL(statements.column_type(own, table))
        )
        for place, own in enumerate(table.model._meta.pk_fields)
    )


def of(connection: BaseDatabaseWrapper, tables: Iterable[JobTable]) -> dict[JobTable, Refused]:
    """Return the rows of each of these tables that could not be written."""
    by_name = {table.name: table for table in tables}
    found = {table: Refused() for table in by_name.values()}
    params = {"tables": list(by_name), "most": MOST_NAMED_ROWS}
    rows = _fetch(connection, "refused", params)
    for name, of_table in groupby(rows, key=itemgetter(0)):
        first, *more = of_table
        named = [RefusedRow(*row[5:]) for row in (first, *more)]
        found[by_name[name]] = Refused(named, *first[1:5])
    return found


def count(connection: BaseDatabaseWrapper) -> dict[str, int]:
    """Return how many rows cannot be written, by table."""
    return dict(_fetch(connection, "refused_by_table", {}))


def remember(
    connection: BaseDatabaseWrapper, table: JobTable, verb: Verb, errors: Mapping[str, str]
) -> None:
    """Remember rows that could not be written, by key as text, each with its error. A row that is
    remembered already is left out for twice as long as before.
    """
    if errors:
        params = {
            "table": table.name,
            "verb": verb.value,
            "keys": list(errors),
            "errors": list(errors.values()),
        }
        _fetch(connection, "remember_refused", params)


def forget(
    connection: BaseDatabaseWrapper,
    table: JobTable,
    verb: Verb,
    written: Collection[str] = (),
    *,
    before: datetime | None = None,
    locked: Collection[str] = (),
) -> None:
    """Forget rows that could be ``written``, by key as text. If all that were due ``before`` have
    been tried, also forget those that were not found: they are finished or deleted, or have a valid
    lease again, and are not only ``locked``.
    """
    params = {
        "table": table.name,
        "verb": verb.value,
        "written": list(written),
        "all_tried": before is not None,
        "before": before,
        "locked": list(locked),
    }
    if written or before is not None:
        _fetch(connection, "forget_refused", params)


def forget_unqueued(connection: BaseDatabaseWrapper, table: JobTable) -> None:
    """Forget the rows that could not be claimed and are not queued any more."""
    fetch(connection, table.statement("forget_unqueued"), {})


def statement(name: str, **overriding: Composable) -> str:
    """Return a statement about the remembered rows of any table."""
    parts: dict[str, Composable] = {
        "first_pause": SQL("interval {}").format(Literal(FIRST_PAUSE)),
        "longest_pause": SQL("interval {}").format(Literal(LONGEST_PAUSE)),
        **{verb.value: Literal(verb.value) for verb in Verb},
        **overriding,
    }
    return sql.render(f"statements/{name}", parts)


_sent = cache(statement)


def _fetch(
    connection: BaseDatabaseWrapper, name: str, params: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    return fetch_within(
        connection,
        _sent(name),
        params,
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=STATEMENT_TIMEOUT_SEC,
    )
