"""Tables in other schemas, in partitions, and in other time zones."""

from __future__ import annotations

import pytest
from django.db import connection, models

from jobreaper import table_checks
from jobreaper.schema import functions
from tests.rows import Sql
from tests.tables.chores import COMMON, model, reaped
from tests.tables.conftest import Adopt, Create

pytestmark = pytest.mark.usefixtures("transactional_db")


class NumberField(models.TextField):  # type: ignore[type-arg]
    """An enum of the database's, whose name the search_path completes."""

    def db_type(self, connection: object) -> str:
        return "number"


def test_another_schemas_table(create: Create, adopt: Adopt, sql: Sql) -> None:
    create(
        f'CREATE SCHEMA "My Office"; CREATE TABLE "My Office"."The Chores" (id int PRIMARY KEY,'
        f" {COMMON})",
        'SCHEMA "My Office"',
    )
    sql('INSERT INTO "My Office"."The Chores" VALUES (1)')
    # A decoy that an unqualified name would find.
    create(f'CREATE TABLE "The Chores" (id int PRIMARY KEY, {COMMON})', 'TABLE "The Chores"')
    sql('INSERT INTO "The Chores" VALUES (2)')
    table = adopt(
        model('My Office"."The Chores', id=models.IntegerField(primary_key=True)), ttl="1m"
    )
    assert table.name == "My Office.The Chores"
    assert reaped(table) == {1: "requeued"}
    assert sql('SELECT status FROM "The Chores"') == [{"status": "processing"}]


@pytest.mark.parametrize("by", ["LIST (status)", "HASH (id)"])
def test_a_partitioned_table(create: Create, adopt: Adopt, sql: Sql, by: str) -> None:
    create(
        f"CREATE TABLE chores (id int, {COMMON}, PRIMARY KEY (id, status)) PARTITION BY {by}",
        "TABLE chores",
    )
    if by.startswith("LIST"):
        sql("CREATE TABLE chores_running PARTITION OF chores FOR VALUES IN ('processing')")
        sql("CREATE TABLE chores_rest PARTITION OF chores DEFAULT")
    else:
        for n in range(2):
            sql(
                f"CREATE TABLE chores_{n} PARTITION OF chores"
                f" FOR VALUES WITH (MODULUS 2, REMAINDER {n})"
            )
    sql("INSERT INTO chores SELECT generate_series(1, 5)")
    sql("UPDATE chores SET claimed_at = now() WHERE id = 5")
    table = adopt(model(id=models.IntegerField(primary_key=True)), ttl=60)
    assert reaped(table) == dict.fromkeys([1, 2, 3, 4], "requeued")
    assert sql("SELECT id FROM chores WHERE status = 'processing'") == [{"id": 5}]


def test_a_time_without_a_zone_is_the_same_in_whatever_zone_it_is_looked_at(
    create: Create, adopt: Adopt, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(
        "CREATE TABLE chores (id int PRIMARY KEY, status text, claimed_at timestamp,"
        " last_heartbeat_at timestamp, locked_by text)",
        "TABLE chores",
    )
    table = adopt(
        model(
            last_heartbeat_at=models.DateTimeField(null=True),
            locked_by=models.TextField(null=True),
        ),
        ttl="10m",
        reclaim_only=True,
    )
    monkeypatch.setattr(table_checks, "job_tables", lambda: [table])
    [warning] = table_checks.check_tables_in_the_database(None, databases=["default"])
    assert (warning.id, warning.msg) == (
        "jobreaper.W014",
        "Job table 'chores' has times that are no timestamp with time zone: claimed_at (timestamp"
        " without time zone), last_heartbeat_at (timestamp without time zone).",
    )
    assert str(warning.hint).startswith("One without time zone is taken to be in UTC;")
    made = functions.of_table(table, connection)
    for each in made:
        each.create(connection)
    for zone in ("Asia/Tokyo", "America/Los_Angeles"):
        sql(f"SET TimeZone = '{zone}'")
        sql("TRUNCATE chores")
        sql(
            "INSERT INTO chores SELECT n, 'processing', ago, ago, 'w' FROM (VALUES (1, 3), (2, 60))"
            " AS times (n, minutes), LATERAL (SELECT now() AT TIME ZONE 'UTC'"
            " - minutes * interval '1 minute') AS moment (ago)"
        )
        assert sql("SELECT job_id, state FROM chores_stale_monitor ORDER BY 1") == [
            {"job_id": "1", "state": "healthy"},
            {"job_id": "2", "state": "stale"},
        ]
        assert sql("SELECT chores_heartbeat(1, 'w') AS held") == [{"held": True}]
        assert sql("SELECT * FROM chores_reap()") == [{"job_id": "2", "outcome": "requeued"}]
        assert reaped(table) == {}
    for each in reversed(made):
        each.drop(connection)


def test_a_table_behind_another_schema_on_the_path(create: Create, adopt: Adopt, sql: Sql) -> None:
    create("CREATE SCHEMA front", "SCHEMA front")
    create(f"CREATE TABLE chores (id int PRIMARY KEY, {COMMON})", "TABLE chores")
    table = adopt(model(), ttl=60)
    with connection.cursor() as cursor:
        cursor.execute("SET search_path = front, public")
        try:
            for each in [functions.policies(connection), *functions.of_table(table, connection)]:
                each.create(connection)
        finally:
            cursor.execute("RESET search_path")
    sql("INSERT INTO chores VALUES (1)")
    assert sql("SELECT state FROM front.chores_stale_monitor") == [{"state": "stale"}]
    assert sql("SELECT * FROM front.chores_reap()") == [{"job_id": "1", "outcome": "requeued"}]


def test_a_key_whose_type_is_in_another_schema(create: Create, adopt: Adopt, sql: Sql) -> None:
    create(
        "CREATE SCHEMA office; CREATE TYPE office.number AS ENUM ('one', 'two');"
        f" CREATE TABLE office.chores (id office.number PRIMARY KEY, {COMMON})",
        "SCHEMA office",
    )
    table = adopt(model('office"."chores', id=NumberField(primary_key=True)), ttl=60)
    with connection.cursor() as cursor:
        cursor.execute("SET search_path = public, office")
        try:
            for each in [functions.policies(connection), *functions.of_table(table, connection)]:
                each.create(connection)
        finally:
            cursor.execute("RESET search_path")
    sql("INSERT INTO office.chores VALUES ('two')")
    assert sql("SELECT * FROM office.chores_reap()") == [{"job_id": "two", "outcome": "requeued"}]
