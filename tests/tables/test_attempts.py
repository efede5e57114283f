"""Attempts of jobs without leases: how they are counted, when they began, what shows their life."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import models

import jobreaper
from jobreaper import table_checks
from jobreaper.tables.jobtable import JobTable
from tests.rows import Rows, Sql
from tests.tables.chores import COMMON, model
from tests.tables.conftest import Adopt, Create, functions_of

pytestmark = pytest.mark.usefixtures("transactional_db")

Reclaim = Callable[[JobTable, Sql], list[str]]


def in_python(table: JobTable, sql: Sql) -> list[str]:
    result = jobreaper.reap([table.model])
    assert result.all_errors == []
    return ["requeued"] * result.requeued + ["failed"] * result.failed


def in_sql(table: JobTable, sql: Sql) -> list[str]:
    with functions_of(table):
        return [row["outcome"] for row in sql("SELECT * FROM chores_reap()")]


WAYS = pytest.mark.parametrize("reclaim", [in_python, in_sql])


@WAYS
@pytest.mark.parametrize(
    ("counted", "column", "at_start"),
    [("claim", True, 1), ("reap", True, 0), ("claim", False, 0), ("reap", False, 0)],
)
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_as_many_attempts_are_made_as_are_allowed_however_they_are_counted(
    create: Create,
    adopt: Adopt,
    sql: Sql,
    reclaim: Reclaim,
    counted: str,
    column: bool,
    at_start: int,
    max_attempts: int,
) -> None:
    tries = ", tries smallint DEFAULT 0" if column else ""
    rows = create(f"CREATE TABLE chores (id int PRIMARY KEY, {COMMON}{tries})", "TABLE chores")
    fields: dict[str, Any] = {"tries": models.SmallIntegerField()} if column else {}
    table = adopt(
        model(**fields),
        columns={"attempt_count": "tries"} if column else {},
        ttl=60,
        max_attempts=max_attempts,
        attempts_counted=counted,
    )
    sql("INSERT INTO chores (id, status) VALUES (1, 'queued')")
    start = "UPDATE chores SET status = 'processing', claimed_at = '2020-01-01'"
    if column:
        start += f", tries = tries + {at_start}"
    outcomes = []
    while sql("SELECT id FROM chores WHERE status = 'queued'"):
        sql(start)
        outcomes += reclaim(table, sql)
    assert outcomes == ["requeued"] * (max_attempts - 1) + ["failed"]
    attempts = [event["details"]["attempt"] for event in rows.events(1)]
    assert attempts == [*range(1, max_attempts + 1)]


@pytest.fixture
def beating(create: Create) -> Rows:
    """A table in which heartbeats are the only sign of life."""
    return create(
        "CREATE TABLE chores (id int PRIMARY KEY, status text NOT NULL, beat timestamptz)",
        "TABLE chores",
    )


def beats_only(**options: Any) -> type[models.Model]:
    return model(claimed_at=None, beat=models.DateTimeField(**options))


BEATS: dict[str, Any] = {
    "columns": {"last_heartbeat_at": "beat"},
    "ttl": "1m",
    "reclaim_only": True,
}


@WAYS
def test_an_attempt_is_not_judged_by_the_heartbeat_of_the_one_before(
    beating: Rows, adopt: Adopt, reclaim: Reclaim
) -> None:
    table = adopt(beats_only(null=True), **BEATS)
    beating.sql("INSERT INTO chores VALUES (1, 'processing', now() - interval '1 hour')")
    assert reclaim(table, beating.sql) == ["requeued"]
    beating.sql("UPDATE chores SET status = 'processing'")
    assert reclaim(table, beating.sql) == [], "it has just begun"
    beating.sql("UPDATE chores SET beat = now() - interval '2 min'")
    assert reclaim(table, beating.sql) == ["requeued"]


@WAYS
def test_the_heartbeat_of_a_job_that_fails_is_kept_as_evidence(
    beating: Rows, adopt: Adopt, reclaim: Reclaim
) -> None:
    table = adopt(beats_only(null=True), **BEATS, on_expiry="fail")
    beating.sql("INSERT INTO chores VALUES (1, 'processing', '2020-01-01')")
    assert reclaim(table, beating.sql) == ["failed"]
    assert beating.row(1)["beat"] is not None


@pytest.mark.parametrize(("on_expiry", "is_told"), [("requeue", True), ("fail", False)])
def test_a_heartbeat_that_has_to_be_emptied_may_be_null(
    adopt: Adopt, monkeypatch: pytest.MonkeyPatch, on_expiry: str, is_told: bool
) -> None:
    table = adopt(beats_only(), **BEATS, on_expiry=on_expiry)
    monkeypatch.setattr(table_checks, "job_tables", lambda: [table])
    errors = [m.msg for m in table_checks.check_adopted_tables(None) if m.id == "jobreaper.E005"]
    assert any("'beat' (last_heartbeat_at) may not be NULL" in each for each in errors) is is_told


@WAYS
@pytest.mark.parametrize(
    ("on_expiry", "null"), [("requeue", True), ("fail", True), ("fail", False)]
)
def test_when_the_lost_attempt_began_is_on_record(
    create: Create,
    adopt: Adopt,
    sql: Sql,
    reclaim: Reclaim,
    on_expiry: str,
    null: bool,
) -> None:
    rows = create(f"CREATE TABLE chores (id int PRIMARY KEY, {COMMON})", "TABLE chores")
    sql(f"ALTER TABLE chores ALTER claimed_at {'DROP' if null else 'SET'} NOT NULL")
    table = adopt(model(claimed_at=models.DateTimeField(null=null)), ttl=60, on_expiry=on_expiry)
    sql("INSERT INTO chores VALUES (1, 'processing', '2020-01-01 12:00Z')")
    assert len(reclaim(table, sql)) == 1
    [event] = rows.events(1)
    assert event["details"]["claimed_at"] == "2020-01-01T12:00:00.000000Z"
    assert (rows.row(1)["claimed_at"] is None) is (on_expiry == "requeue")
