"""Tables of every kind: their keys, schemas and partitions, and what they lack."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from django.db import connection, models
from django.test.utils import isolate_apps
from django.utils import timezone

import jobreaper
from jobreaper import checks, control, installed, tables
from jobreaper.base import LeasedJob
from jobreaper.exceptions import ConfigurationError, NotLeasable
from jobreaper.jobtable import JobTable
from tests.adoption import errands
from tests.adoption.conftest import Adopt, Create, Leased, functions_of
from tests.rows import Rows, Sql

pytestmark = pytest.mark.django_db(transaction=True)


def model(table: str = "chores", **fields: models.Field[Any, Any] | None) -> type[models.Model]:
    """An unmanaged model of a table with a status, a start and whatever else is given."""
    meta = type("Meta", (), {"app_label": "chores", "managed": False, "db_table": table})
    given = {
        "status": models.TextField(),
        "claimed_at": models.DateTimeField(null=True),
        **fields,
        "Meta": meta,
        "__module__": __name__,
    }
    name = f"Chore{next(numbers)}"
    return type(name, (models.Model,), given)


numbers = iter(range(1_000_000))

COMMON = "status text NOT NULL DEFAULT 'processing', claimed_at timestamptz DEFAULT '2020-01-01'"


def reaped(table: JobTable) -> dict[Any, str]:
    dry = jobreaper.reap([table.model], dry_run=True)
    result = jobreaper.reap([table.model])
    assert result.all_errors == []
    assert sorted(map(str, dry.requeued_ids[table.name])) == sorted(
        map(str, result.requeued_ids[table.name])
    )
    return {
        **dict.fromkeys(result.requeued_ids[table.name], "requeued"),
        **dict.fromkeys(result.failed_ids[table.name], "failed"),
    }


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
        [function, *_] = installed.of_table(table, connection)
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
    assert reaped(pairs) == {'[1, "a\\"b"]': "requeued", '[1, "c"]': "requeued"}
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
    assert sorted(result.requeued_ids["chores"]) == ['[1, "a"]', '[1, "c"]', '[3, "x"]']
    assert len(result.all_errors) == 2
    assert all("bad" in error and "check constraint" in error for error in result.all_errors)


def test_a_row_that_cannot_be_written_stops_no_other_in_sql_either(
    pairs: JobTable, sql: Sql
) -> None:
    sql("INSERT INTO chores (org, name) VALUES (1, 'a'), (1, 'bad'), (1, 'c')")
    [function, *_] = made = installed.of_table(pairs, connection)
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
    monkeypatch.setattr(checks, "job_tables", lambda: [table])
    [warning] = checks.check_tables_in_the_database(None, databases=["default"])
    assert (warning.id, warning.msg) == (
        "jobreaper.W014",
        "Job table 'chores' has times that are no timestamp with time zone: claimed_at (timestamp"
        " without time zone), last_heartbeat_at (timestamp without time zone).",
    )
    assert str(warning.hint).startswith("One without time zone is taken to be in UTC;")
    made = installed.of_table(table, connection)
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
    assert reaped(table) == dict.fromkeys(shown[0], "requeued")
    events = [row["job_id"] for row in sql("SELECT job_id FROM job_events")]
    assert sorted(events) == sorted(shown[0]) == sorted(shown[1])


def test_a_table_behind_another_schema_on_the_path(create: Create, adopt: Adopt, sql: Sql) -> None:
    create("CREATE SCHEMA front", "SCHEMA front")
    create(f"CREATE TABLE chores (id int PRIMARY KEY, {COMMON})", "TABLE chores")
    table = adopt(model(), ttl=60)
    with connection.cursor() as cursor:
        cursor.execute("SET search_path = front, public")
        try:
            for each in [installed.policies(connection), *installed.of_table(table, connection)]:
                each.create(connection)
        finally:
            cursor.execute("RESET search_path")
    sql("INSERT INTO chores VALUES (1)")
    assert sql("SELECT state FROM front.chores_stale_monitor") == [{"state": "stale"}]
    assert sql("SELECT * FROM front.chores_reap()") == [{"job_id": "1", "outcome": "requeued"}]


class State(models.IntegerChoices):
    WAITS = 1
    RUNS = 2
    ENDS = 3


class Kind(models.TextChoices):
    EIGHT = "8"


@pytest.mark.parametrize(
    ("running", "ttl"),
    [(["2", "3"], {"8": "1m"}), ([State.RUNS, State.ENDS], {8: 60}), ([2, 3], {Kind.EIGHT: "60"})],
)
def test_numbers_may_be_words_and_kinds_of_work(
    create: Create, adopt: Adopt, sql: Sql, running: list[Any], ttl: dict[Any, Any]
) -> None:
    create(
        "CREATE TABLE chores (id int PRIMARY KEY, status smallint NOT NULL, kind int,"
        " claimed_at timestamptz DEFAULT '2020-01-01')",
        "TABLE chores",
    )
    sql("INSERT INTO chores VALUES (1, 2, 8), (2, 3, 8), (3, 2, 9)")
    table = adopt(
        model(
            id=models.IntegerField(primary_key=True),
            status=models.SmallIntegerField(),
            kind=models.IntegerField(),
        ),
        columns={"stage": "kind"},
        words={"queued": State.WAITS, "processing": running, "success": 4, "failed": "5"},
        ttl=ttl,
        max_attempts=1,
    )
    assert reaped(table) == {1: "failed", 2: "failed"}
    rows = sql("SELECT status FROM chores ORDER BY id")
    assert [row["status"] for row in rows] == [5, 5, 2]


def test_the_jobs_of_a_multi_table_child_are_its_parents(
    adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leased(name: str, parent: type[models.Model], **options: Any) -> Any:
        meta = type("Meta", (), {"app_label": "documents", **options})
        return type(name, (parent,), {"Meta": meta, "__module__": __name__})

    with isolate_apps("project.documents") as isolated:
        parent = leased("Transcode", LeasedJob)
        child = leased("Burnin", parent)
        proxy = leased("Late", child, proxy=True)
    monkeypatch.setattr(tables, "apps", isolated)
    table = adopt(parent)
    assert tables.job_tables() == [table]
    assert tables.table_of(child) is tables.table_of(proxy) is table


# What is missing


@pytest.fixture
def chores(create: Create) -> Rows:
    return create(f"CREATE TABLE chores (id int PRIMARY KEY, {COMMON})", "TABLE chores")


def test_attempts_that_the_table_does_not_count_are_counted_from_the_events(
    chores: Rows, adopt: Adopt
) -> None:
    table = adopt(model(id=models.IntegerField(primary_key=True)), ttl=60, max_attempts=3)
    chores.sql("INSERT INTO chores VALUES (1)")
    for outcome in ("requeued", "requeued", "failed"):
        assert reaped(table) == {1: outcome}
        chores.sql("UPDATE chores SET status = 'processing', claimed_at = '2020-01-01'")
    # The last UPDATE was an operator's: the job starts afresh.
    assert reaped(table) == {1: "requeued"}
    attempts = [event["details"]["attempt"] for event in chores.events(1)]
    assert attempts == [1, 2, 3, 1]


def test_a_table_without_a_worker_is_reclaimed(chores: Rows, adopt: Adopt) -> None:
    chores.sql("INSERT INTO chores VALUES (1)")
    table = adopt(model(id=models.IntegerField(primary_key=True)), ttl=60)
    assert "locked_by" in table.missing
    assert reaped(table) == {1: "requeued"}
    assert chores.events(1)[0]["details"]["locked_by"] is None
    with pytest.raises(NotLeasable, match="locked_by"):
        jobreaper.claim(table.model, 1)


@pytest.mark.parametrize(("max_attempts", "fail_code"), [(3, None), (1, "timeout")])
def test_what_there_is_of_a_lease_ends_with_the_attempt(
    create: Create, adopt: Adopt, sql: Sql, max_attempts: int, fail_code: str | None
) -> None:
    times = dict.fromkeys(("lease_expires_at", "deadline_at", "dispatched_at"), "2020-01-01")
    columns = "".join(f", {name} timestamptz DEFAULT '{value}'" for name, value in times.items())
    create(
        f"CREATE TABLE chores (id int PRIMARY KEY, {COMMON}{columns}, lease_epoch bigint,"
        " reap_count int DEFAULT 1, attempt_count int DEFAULT 1, fail_code text)",
        "TABLE chores",
    )
    sql("INSERT INTO chores (id, lease_epoch) VALUES (1, 4), (2, NULL)")
    nullable_times: dict[str, Any] = {name: models.DateTimeField(null=True) for name in times}
    table = adopt(
        model(
            id=models.IntegerField(primary_key=True),
            lease_epoch=models.BigIntegerField(null=True),
            reap_count=models.IntegerField(null=True),
            attempt_count=models.IntegerField(),
            fail_code=models.TextField(null=True),
            **nullable_times,
        ),
        ttl=60,
        max_attempts=max_attempts,
    )
    assert len(reaped(table)) == 2
    first, second = sql("SELECT * FROM chores ORDER BY id")
    assert (first["lease_epoch"], second["lease_epoch"]) == (5, 1)
    assert (first["reap_count"], first["attempt_count"]) == (2, 1)
    assert first["fail_code"] == fail_code
    assert {first[name] for name in times} == {None}


def test_a_table_that_gives_no_sign_of_life_is_left_alone_and_shown(
    chores: Rows, adopt: Adopt
) -> None:
    chores.sql("INSERT INTO chores VALUES (1)")
    table = adopt(model(id=models.IntegerField(primary_key=True), claimed_at=None), ttl=60)
    assert reaped(table) == {}
    made = installed.of_table(table, connection)
    for each in made:
        each.create(connection)
    [shown] = chores.sql("TABLE chores_stale_monitor")
    assert (shown["job_id"], shown["state"]) == ("1", "unknown")
    for each in made:
        each.drop(connection)


def test_a_job_that_must_not_run_twice_is_failed(chores: Rows, adopt: Adopt) -> None:
    chores.sql("INSERT INTO chores VALUES (1)")
    table = adopt(model(id=models.IntegerField(primary_key=True)), ttl=60, on_expiry="fail")
    assert reaped(table) == {1: "failed"}
    [event] = chores.events(1)
    assert event["type"] == "reaper:failed(timeout)"
    assert event["details"]["note"] == "RECLAIMED_TTL: Exceeded TTL (1 min)"


@pytest.mark.parametrize(
    ("ttl", "words"),
    [(90, "90 s"), ("15m", "15 min"), ("12h", "720 min"), (0.25, "0.25 s")],
)
def test_the_note_tells_the_ttl_in_words(
    chores: Rows, adopt: Adopt, ttl: float | str, words: str
) -> None:
    chores.sql("INSERT INTO chores VALUES (1)")
    reaped(adopt(model(id=models.IntegerField(primary_key=True)), ttl=ttl, note="LATE"))
    assert chores.events(1)[0]["details"]["note"] == f"LATE: Exceeded TTL ({words})"


def test_a_note_too_long_for_its_column_is_cut(create: Create, adopt: Adopt, sql: Sql) -> None:
    create(
        f"CREATE TABLE chores (id int, fail_reason varchar(9), fail_code varchar(4), {COMMON})",
        "TABLE chores",
    )
    table = adopt(
        model(
            fail_reason=models.CharField(max_length=9, null=True),
            fail_code=models.CharField(max_length=4, null=True),
        ),
        ttl=60,
        on_expiry="fail",
    )
    sql("INSERT INTO chores VALUES (1)")
    assert reaped(table) == {1: "failed"}
    assert sql("SELECT fail_reason, fail_code FROM chores") == [
        {"fail_reason": "RECLAIMED", "fail_code": "time"}
    ]


def test_an_error_too_long_for_its_columns_is_cut(
    create: Create, adopt: Adopt, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(errands.DEFINITION, "SCHEMA office")
    sql(
        'ALTER TABLE office."Errands" ALTER error_text TYPE varchar(9),'
        " ALTER error_code TYPE varchar(4)"
    )
    monkeypatch.setattr(errands.Errand._meta.get_field("error_text"), "max_length", 9)
    monkeypatch.setattr(errands.Errand._meta.get_field("error_code"), "max_length", 4)
    table = adopt(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS)
    for each in [installed.policies(connection), *installed.of_table(table, connection)]:
        each.create(connection)
    jobs = [errands.Errand._default_manager.create() for _ in range(3)]
    claim = partial(jobreaper.claim, errands.Errand)
    with pytest.raises(OSError, match="much too long"), jobreaper.hold(errands.Errand, jobs[0].pk):
        raise OSError("much too long")
    lease = claim(jobs[1].pk, worker="w")
    assert lease
    call = 'SELECT office."Errands_fail"(%s, %s, %s, %s, %s) AS held'
    assert sql(call, lease.pk, "w", lease.epoch, "E1234", "much too long") == [{"held": True}]
    errands.Errand._default_manager.filter(pk=jobs[2].pk).update(tries_allowed=1)
    assert claim(jobs[2].pk)
    errands.Errand._default_manager.filter(pk=jobs[2].pk).update(
        leased_until=timezone.now() - timedelta(1)
    )
    assert jobreaper.reap([errands.Errand]).failed == 1
    errors = errands.Errand._default_manager.order_by("pk").values_list("error_code", "error_text")
    assert [*errors] == [("OSEr", "much too "), ("E123", "much too "), ("time", "lease_exp")]
    assert control.fail(errands.Errand, [jobs[0].pk], by="ann")
    jobs[0].refresh_from_db()
    assert jobs[0].error_code == "fail"


def test_attempts_that_are_null_count_as_none_and_the_rows_limit_wins(
    create: Create, adopt: Adopt, sql: Sql
) -> None:
    create(
        f"CREATE TABLE chores (id int PRIMARY KEY, {COMMON}, attempt_count int, max_attempts int)",
        "TABLE chores",
    )
    sql("INSERT INTO chores (id, attempt_count, max_attempts) VALUES (1, NULL, NULL), (2, 1, 1)")
    table = adopt(
        model(
            id=models.IntegerField(primary_key=True),
            attempt_count=models.IntegerField(null=True),
            max_attempts=models.IntegerField(null=True),
        ),
        ttl=60,
        attempts_counted="reap",
        max_attempts=2,
    )
    assert reaped(table) == {1: "requeued", 2: "failed"}
    rows = sql("SELECT attempt_count FROM chores ORDER BY id")
    assert [row["attempt_count"] for row in rows] == [1, 1]


def by_reaping(table: JobTable) -> None:
    errands.Errand._default_manager.update(leased_until=timezone.now() - timedelta(1))
    jobreaper.reap([table.model])


def by_failing(table: JobTable) -> None:
    epochs = errands.Errand._default_manager.values_list("pk", "fence", "worker")
    for pk, epoch, worker in epochs:
        with connection.cursor() as cursor:
            call = 'SELECT office."Errands_fail"(%s, %s, %s, %s, %s) AS held'
            cursor.execute(call, [pk, worker, epoch, "E1", "again"])
            assert cursor.fetchone() == (True,)


@pytest.mark.parametrize("ends", [by_reaping, by_failing])
def test_jobs_whose_numbers_are_null_can_be_leased_and_come_to_an_end(
    create: Create, adopt: Adopt, sql: Sql, ends: Callable[[JobTable], None]
) -> None:
    create(errands.DEFINITION, "SCHEMA office")
    for column in ("fence", "tries", "tries_allowed", "losses"):
        sql(f'ALTER TABLE office."Errands" ALTER {column} DROP NOT NULL')
    table = adopt(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS, max_attempts=2)
    for each in [installed.policies(connection), *installed.of_table(table, connection)]:
        each.create(connection)
    jobs = errands.Errand._default_manager
    jobs.create(fence=None, tries=None, tries_allowed=None, losses=None)
    states: list[Any] = []
    for _ in range(2):
        jobs.update(not_before=None)
        [lease] = jobreaper.claim_next(errands.Errand)
        lease.heartbeat()
        ends(table)
        states += jobs.values_list("state", "tries")
    assert states == [("waiting", 1), ("failed", 2)]
    # A worker from before leases had it, and an operator wants it back.
    jobs.update(state="running", fence=None, tries=None, losses=None, leased_until=timezone.now())
    assert jobreaper.reap([errands.Errand]).requeued == 1
    assert jobs.get().fence == 1
    jobs.update(fence=None)
    assert len(control.cancel(errands.Errand, jobs.values_list("pk", flat=True), by="ann")) == 1
    assert jobs.get().fence == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"lease_expire_at": "x"}}, "'lease_expire_at' is no part of the protocol"),
        ({"columns": {"stage": "no_such"}}, "no field or column 'no_such'"),
        ({"words": {"running": "x"}}, "'running' is no status"),
        (
            {"words": {"processing": []}},
            r"words for 'processing' is \[\]: there must be one at least",
        ),
        (
            {"words": {"cancelled": None}},
            "words for 'cancelled' is None: it must be text or a whole",
        ),
        ({"words": {"queued": [True]}}, r"words for 'queued' is \[True\]: it must be text"),
        ({"words": "queued"}, "words is 'queued': it must be a dict"),
        ({"words": {"processing": ["a", "failed"]}}, "'failed' means both processing and failed"),
        ({"words": {"success": "done", "queued": "done"}}, "'done' means both queued and success"),
        ({"words": {"queued": "a", "processing": "a"}}, "'a' means both queued and processing"),
        ({"columns": {"stage": "status"}}, "'status' plays several parts: status, stage"),
        (
            {"functions": {"reclaim": "x"}},
            "'reclaim' is no function or view .there are claim, heart",
        ),
        ({"functions": {"reap": 1}}, "functions for 'reap' is 1: it must be text"),
        ({"functions": {"reap": "a\x00b"}}, "functions for 'reap' is .*: it must have neither NUL"),
        ({"words": {"queued": "a\ud800"}}, "words for 'queued' is .*: it must have neither NUL"),
        ({"ttl": {"a\x00b": 1}}, "a stage in ttl is .*: it must have neither NUL"),
        ({"note": "a\x00b"}, "note is .*: it must have neither NUL"),
        ({"functions": {"reap": "x", "claim": "x"}}, "has the name 'x' more than once"),
        (
            {"functions": {"stale_monitor": "chores_reclaim_history"}},
            "'chores_reclaim_history' more",
        ),
        ({"ttl": {None: 1}}, "a stage in ttl is None: it must be text or a whole number"),
        ({"ttl": {"a": 1}}, "there is no stage column"),
        ({"ttl": -1}, "ttl is -1: it must not be negative"),
        ({"attempts_counted": "never"}, "attempts_counted is 'never'"),
        ({"on_expiry": "explode"}, "on_expiry is 'explode': it must be one of requeue, fail"),
    ],
)
def test_what_is_wrong_is_told_at_once(options: dict[str, Any], message: str) -> None:
    chore = model(id=models.IntegerField(primary_key=True))
    with pytest.raises(ConfigurationError, match=message) as raised:
        jobreaper.register(chore, **options)
    assert chore._meta.label in str(raised.value)


def test_two_tables_have_no_function_of_one_name(adopt: Adopt) -> None:
    adopt(model(), functions={"reap": "tidy_up"})
    with pytest.raises(ConfigurationError, match="'tidy_up', which is that of chores's reap"):
        adopt(model("errands"), functions={"reap": "tidy_up"})
    adopt(model('office"."errands'), functions={"reap": "tidy_up"})


def test_ends_may_share_a_word_where_no_verb_tells_them_apart(create: Create, adopt: Adopt) -> None:
    adopt(model(), words=dict.fromkeys(("success", "failed", "cancelled"), "done"))
    with pytest.raises(ConfigurationError, match="'completed' means both success and failed"):
        adopt(
            errands.Errand, columns=errands.COLUMNS, words=errands.WORDS | {"failed": "completed"}
        )
    adopt(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS | {"failed": "canceled"})


def messages(table: JobTable, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(checks, "job_tables", lambda: [table])
    return [f"{m.id} {m.msg}" for m in checks.check_adopted_tables(None)]


def test_the_check_names_each_missing_part_and_its_cost(
    adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = adopt(model(id=models.IntegerField(primary_key=True)), ttl=60)
    [message] = messages(table, monkeypatch)
    assert message.startswith("jobreaper.W011 Job table 'chores' has no column for")
    assert "- last_heartbeat_at: a healthy job that takes longer than its ttl is" in message
    assert "- lease_epoch: no leases" in message
    assert {line.split(":")[0][2:] for line in message.splitlines()[1:]} == set(table.missing)


@pytest.mark.parametrize("reclaim_only", [False, True])
def test_the_hint_proposes_what_was_not_said_yet(
    adopt: Adopt, monkeypatch: pytest.MonkeyPatch, reclaim_only: bool
) -> None:
    table = adopt(
        model(id=models.IntegerField(primary_key=True)), ttl=60, reclaim_only=reclaim_only
    )
    monkeypatch.setattr(checks, "job_tables", lambda: [table])
    [message] = checks.check_adopted_tables(None)
    assert ("reclaim_only=True" in str(message.hint)) is not reclaim_only


def test_the_check_is_content_with_a_complete_table(
    adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = adopt(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS)
    assert messages(table, monkeypatch) == []


@pytest.mark.parametrize(
    ("fields", "options", "problem"),
    [
        ({}, {}, "neither leases nor a ttl"),
        ({"claimed_at": None}, {"ttl": 60}, "no column for claimed_at or last_heartbeat_at"),
        ({"claimed_at": models.DateTimeField()}, {"ttl": 60}, "'claimed_at' .* may not be NULL"),
    ],
)
def test_the_check_refuses_a_table_that_cannot_be_reaped(
    adopt: Adopt,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    options: dict[str, Any],
    problem: str,
) -> None:
    chore = model(id=models.IntegerField(primary_key=True), **fields)
    found = messages(adopt(chore, reclaim_only=True, **options), monkeypatch)
    errors = [message for message in found if message.startswith("jobreaper.E005")]
    assert len(errors) == 1
    assert re.search(problem, errors[0])
