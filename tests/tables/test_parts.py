"""Tables with some parts and without others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, models
from django.utils import timezone

import jobreaper
from jobreaper import control
from jobreaper.exceptions import NotLeasable
from jobreaper.schema import functions
from jobreaper.tables.jobtable import JobTable
from tests.rows import Rows, Sql
from tests.tables import errands
from tests.tables.chores import COMMON, model, reaped
from tests.tables.conftest import Adopt, Create

pytestmark = pytest.mark.usefixtures("transactional_db")


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
    made = functions.of_table(table, connection)
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
    for each in [functions.policies(connection), *functions.of_table(table, connection)]:
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
    for each in [functions.policies(connection), *functions.of_table(table, connection)]:
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
