"""Tables with keys of every kind."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, models

import jobreaper
from jobreaper import tables
from jobreaper.base import LeasedJob
from jobreaper.exceptions import NotLeasable
from jobreaper.schema import functions
from jobreaper.tables.jobtable import JobTable
from tests.rows import Sql
from tests.tables.chores import COMMON, model, reaped
from tests.tables.conftest import Adopt, Create, Leased, functions_of

pytestmark = pytest.mark.usefixtures("transactional_db")


KEYS: dict[str, tuple[str, Callable[[], Any], str, Any]] = {
    "int": ("int", lambda: models.AutoField(primary_key=True), "7", 7),
    "text": ("text", lambda: models.TextField(primary_key=True), "'it''s'", "it's"),
    "varchar": ("varchar(9)", lambda: models.CharField(max_length=9, primary_key=True), "'9'", "9"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_any_key_will_do(create: Create, adopt: Adopt, sql: Sql, kind: str) -> None:
    type_, field, literal, key = KEYS[kind]
    create(f"CREATE TABLE chores (id {type_} PRIMARY KEY, {COMMON})", "TABLE chores")
    sql(f"INSERT INTO chores VALUES ({literal})")
    table = adopt(model(id=field()), ttl=60)
    assert reaped(table) == {key: "requeued"}
    [event] = sql("SELECT job_id FROM job_events")
    assert event["job_id"] == str(key)


# More than are tried before others are tried by lot.
@pytest.mark.parametrize("time", ["timestamptz", "timestamp"])
@pytest.mark.parametrize("by", ["function", "Python"])
@pytest.mark.parametrize("kind", KEYS)
def test_any_number_of_rows_that_cannot_be_written_stops_no_other(
    create: Create, adopt: Adopt, sql: Sql, kind: str, by: str, time: str
) -> None:
    type_, field, _, _ = KEYS[kind]
    create(
        f"CREATE TABLE chores (id {type_} PRIMARY KEY, status text, claimed_at {time},"
        " good bool CHECK (good OR status <> 'queued'))",
        "TABLE chores",
    )
    insert = (
        f"INSERT INTO chores SELECT n::text::{type_}, 'processing', %s, %s FROM generate_series"
    )
    sql(f"{insert}(1, 50) AS n", "-infinity", False)
    sql(f"{insert}(51, 55) AS n", "2020-01-01", True)
    table = adopt(model(id=field()), ttl=60)
    if by == "function":
        [function, *_] = functions.of_table(table, connection)
        function.create(connection)
        assert len(sql("SELECT * FROM chores_reap(10)")) == 5
        function.drop(connection)
    else:
        assert jobreaper.reap([table.model], batch_size=10).requeued == 5


@pytest.mark.parametrize(
    ("key", "longer"),
    [
        (models.CharField(max_length=3, primary_key=True), "abcd"),
        (models.DecimalField(max_digits=4, decimal_places=1, primary_key=True), Decimal("1.04")),
    ],
)
def test_a_key_that_does_not_fit_is_no_jobs(leased: Leased, key: Any, longer: Any) -> None:
    chore = leased(key=key)
    pk = chore.objects.create(key="abc" if isinstance(longer, str) else "1.0").pk
    with functions_of(tables.table_of(chore)), connection.cursor() as cursor:
        call = "SELECT key FROM chores_claim('w', job_id => %s)"
        cursor.execute(call, [longer])
        assert cursor.fetchall() == []
        cursor.execute(call, [pk])
        assert len(cursor.fetchall()) == 1


@pytest.fixture
def pairs(create: Create, adopt: Adopt) -> JobTable:
    """A table whose key has two columns, one of them text with a limit."""
    create(
        f"CREATE TABLE chores (org int, name text, {COMMON}, last_error varchar(60),"
        " CHECK (name <> 'bad' OR status <> 'queued'), PRIMARY KEY (org, name))",
        "TABLE chores",
    )
    return adopt(
        model(
            pk=models.CompositePrimaryKey("org", "name"),
            org=models.IntegerField(),
            name=models.TextField(),
        ),
        ttl=60,
    )


def test_a_composite_key_names_its_job_as_json(pairs: JobTable, sql: Sql) -> None:
    sql("INSERT INTO chores (org, name) VALUES (1, 'a\"b'), (1, 'c'), (2, 'c')")
    sql("UPDATE chores SET claimed_at = now() WHERE org = 2")
    assert reaped(pairs) == {(1, 'a"b'): "requeued", (1, "c"): "requeued"}
    assert {event["job_id"] for event in sql("SELECT job_id FROM job_events")} == {
        '[1, "a\\"b"]', '[1, "c"]'
    }  # fmt: skip
    rows = sql("SELECT org, status FROM chores ORDER BY org, name")
    assert [row["status"] for row in rows] == ["queued", "queued", "processing"]


def test_a_row_that_cannot_be_written_stops_no_other(pairs: JobTable, sql: Sql) -> None:
    sql(
        "INSERT INTO chores (org, name) VALUES (1, 'a'), (1, 'bad'), (1, 'c'), (2, 'bad'), (3, 'x')"
    )
    result = jobreaper.reap([pairs.model])
    assert sorted(result.requeued_ids["chores"]) == [(1, "a"), (1, "c"), (3, "x")]
    assert len(result.all_errors) == 2
    assert all("bad" in error and "check constraint" in error for error in result.all_errors)


def test_a_row_that_cannot_be_written_stops_no_other_in_sql_either(
    pairs: JobTable, sql: Sql
) -> None:
    sql("INSERT INTO chores (org, name) VALUES (1, 'a'), (1, 'bad'), (1, 'c')")
    [function, *_] = made = functions.of_table(pairs, connection)
    function.create(connection)
    reclaimed = sql("SELECT job_id FROM chores_reap()")
    assert {row["job_id"] for row in reclaimed} == {'[1, "a"]', '[1, "c"]'}
    [done] = sql("SELECT error FROM jobreaper_passes")
    assert done["error"].startswith('chores: job [1, "bad"]: new row for relation "chores"')
    for each in made:
        each.drop(connection)


def test_jobs_with_a_composite_key_cannot_be_leased_and_the_error_says_why(
    create: Create, adopt: Adopt
) -> None:
    fields: dict[str, Any] = {f.name: f.clone() for f in LeasedJob._meta.local_fields}
    composite = model(
        pk=models.CompositePrimaryKey("org", "name"),
        org=models.IntegerField(),
        name=models.TextField(),
        **fields,
    )
    table = adopt(composite, ttl=60)
    assert not table.can_be_leased
    with pytest.raises(NotLeasable, match="its key is composite"):
        jobreaper.claim_next(composite)


@pytest.mark.parametrize("time", ["timestamptz", "timestamp"])
def test_a_time_in_a_key_is_the_same_in_a_view_and_in_an_event(
    create: Create, adopt: Adopt, sql: Sql, time: str
) -> None:
    create(f"CREATE TABLE chores (at {time}, n int, {COMMON}, PRIMARY KEY (at, n))", "TABLE chores")
    sql("INSERT INTO chores VALUES ('2026-03-29 01:30:00Z', 1), ('2026-03-29 01:30:00.25Z', 2)")
    table = adopt(
        model(
            pk=models.CompositePrimaryKey("at", "n"),
            at=models.DateTimeField(),
            n=models.IntegerField(),
        ),
        ttl=60,
    )
    shown = []
    with functions_of(table):
        for zone in ("Asia/Tokyo", "America/Los_Angeles"):
            sql(f"SET TimeZone = '{zone}'")
            shown.append([row["job_id"] for row in sql("SELECT job_id FROM chores_stale_monitor")])
    assert list(reaped(table).values()) == ["requeued"] * 2
    events = [row["job_id"] for row in sql("SELECT job_id FROM job_events")]
    assert sorted(events) == sorted(shown[0]) == sorted(shown[1])


def test_a_day_in_a_key_is_the_same_in_an_event_whatever_the_session_writes(
    create: Create, adopt: Adopt, sql: Sql
) -> None:
    create(f"CREATE TABLE chores (day date PRIMARY KEY, {COMMON})", "TABLE chores")
    sql("INSERT INTO chores VALUES ('2026-03-29')")
    table = adopt(model(day=models.DateField(primary_key=True)), ttl=60)
    with functions_of(table), connection.cursor() as cursor:
        cursor.execute("SET DateStyle = 'German, DMY'")
        cursor.execute("SELECT job_id FROM chores_reap()")
        assert cursor.fetchall() == [("2026-03-29",)]
        cursor.execute("RESET DateStyle")
    [event] = sql("SELECT job_id FROM job_events")
    assert event["job_id"] == "2026-03-29"
