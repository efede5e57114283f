"""Sessions that prepare the protocol's statements."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DataError, connection, transaction

from jobreaper import claim, claim_next
from jobreaper.db import array_of_texts, fetch, prepared
from jobreaper.models import Job
from jobreaper.states import Status

pytestmark = pytest.mark.django_db(transaction=True)

PREPARED = "SELECT statement FROM pg_prepared_statements"


@pytest.fixture(autouse=True)
def preparing() -> Iterator[None]:
    connection.ensure_connection()
    prepared.prepare_on(connection)
    yield
    connection.close()


def run_a_job() -> Any:
    [job] = Job.objects.bulk_create([Job(type="mail")])
    lease = claim(Job, job.pk)
    assert lease is not None
    lease.finish()
    job.refresh_from_db()
    assert (job.status, job.attempt_count) == (Status.SUCCESS, 1)
    return lease.job


def statements() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(PREPARED)
        return [statement for (statement,) in cursor.fetchall()]


def test_a_claim_and_a_finish_are_prepared_once_each() -> None:
    for _ in range(prepared.THRESHOLD + 3):
        run_a_job()
    names = sorted(found.split(maxsplit=2)[1] for found in statements())
    assert names == ["attempt", "left_out"]


@pytest.mark.parametrize(
    "change",
    [
        "DISCARD ALL",
        "ALTER TABLE jobreaper_jobs ALTER COLUMN org_id TYPE varchar",
    ],
)
def test_what_takes_a_prepared_statement_away_costs_no_job(change: str) -> None:
    for _ in range(prepared.THRESHOLD + 2):
        run_a_job()
    with connection.cursor() as cursor:
        cursor.execute(change)
    try:
        run_a_job()
        # Nor does it later: each statement would be sent in vain first.
        prepared.prepare_on(connection)
        assert not prepared.prepares(connection)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE jobreaper_jobs ALTER COLUMN org_id TYPE text")


def test_a_callers_transaction_is_not_broken_by_what_is_gone() -> None:
    for _ in range(prepared.THRESHOLD + 2):
        fetch(connection, "SELECT %(n)s::int", {"n": 1})
    with connection.cursor() as cursor:
        cursor.execute("DISCARD ALL")
    with transaction.atomic():
        assert fetch(connection, "SELECT %(n)s::int", {"n": 1}) == [(1,)]


def test_a_parameter_whose_type_the_server_cannot_tell_is_sent_in_the_text() -> None:
    assert fetch(connection, "SELECT jsonb_build_array(%(of)s)->>0", {"of": "x"}) == [("x",)]


def test_a_statement_that_somebody_watches_is_not_prepared() -> None:
    seen = []

    def see(execute: Any, statement: str, *args: Any) -> Any:
        seen.append(statement)
        return execute(statement, *args)

    with connection.execute_wrapper(see):
        fetch(connection, "SELECT %(n)s %% 2", {"n": 3})
    assert len(seen) == 1
    assert fetch(connection, "SELECT %(n)s %% 2", {"n": 3}) == [(1,)]


def test_a_statement_whose_types_the_server_cannot_tell_leaves_the_others_prepared() -> None:
    for _ in range(prepared.THRESHOLD + 2):
        fetch(connection, "SELECT jsonb_build_array(%(of)s)->>0", {"of": "x"})
        fetch(connection, "SELECT %(n)s::int", {"n": 1})
    assert statements() == ["SELECT $1::int"]


@pytest.mark.parametrize(
    "change",
    ["SET client_encoding = 'LATIN1'", "SET TIME ZONE 'Asia/Tokyo'"],
)
def test_what_a_session_reads_by_may_change_between_two_statements(change: str) -> None:
    at = datetime(2026, 6, 1, 12, 30, tzinfo=UTC)
    for text in (None, change, None, "RESET ALL"):
        if text is not None:
            with connection.cursor() as cursor:
                cursor.execute(text)
        for _ in range(prepared.THRESHOLD + 2):
            read = fetch(connection, "SELECT length(%(of)s::text), chr(252)", {"of": "Bücher"})
            assert read == [(6, "ü")]
            job = run_a_job()
            assert datetime.now(UTC) - job.claimed_at < timedelta(hours=1)
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'UTC'")
    assert fetch(connection, "SELECT %(at)s::timestamptz", {"at": at}) == [(at,)]


def test_what_was_read_is_not_kept_if_it_is_much() -> None:
    def cursors_after(statement: str) -> int:
        for _ in range(2):
            fetch(connection, statement, {"n": 1})
        known: Any = connection
        return len(known.jobreaper_prepared.cursors)

    assert cursors_after("SELECT %(n)s::int") == 1
    assert cursors_after("SELECT generate_series(1, 1 + %(n)s::int)") == 1
    assert cursors_after("SELECT repeat('x', 1000000 * %(n)s::int)") == 1


def test_a_cursor_that_was_interrupted_is_not_used_again() -> None:
    divide = "SELECT 1 / %(n)s::int"
    for _ in range(prepared.THRESHOLD + 2):
        with pytest.raises(DataError):
            fetch(connection, divide, {"n": 0})
        assert fetch(connection, divide, {"n": 1}) == [(1,)]


def test_names_are_an_array_as_the_driver_would_write_it() -> None:
    names = ("search_path", 'a "b" \\c', "d,{e}", "", "NULL", "ü")
    assert fetch(connection, "SELECT %(names)s::text[]", {"names": array_of_texts(names)}) == [
        (list(names),)
    ]


@pytest.mark.parametrize("rows", [1, prepared.FEW_ROWS])
def test_the_plan_of_a_claim_of_a_few_jobs_is_kept(rows: int) -> None:
    Job.objects.bulk_create(Job(type="mail") for _ in range(2000))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE jobreaper_jobs")
    for _ in range(prepared.THRESHOLD + 8):
        assert len(claim_next(Job, rows)) == rows
    with connection.cursor() as cursor:
        cursor.execute("SELECT generic_plans FROM pg_prepared_statements")
        assert cursor.fetchall() > [(0,)]


def test_numbers_of_rows_are_told_apart() -> None:
    Job.objects.bulk_create(Job(type="mail") for _ in range(40))
    for rows in [1, 2, 3, 0] * (prepared.THRESHOLD + 2):
        statement = "SELECT id FROM jobreaper_jobs LIMIT %(n)s"
        assert len(fetch(connection, statement, {"n": rows})) == rows


def test_a_plan_that_was_made_for_an_empty_table_is_not_kept_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = "SELECT id FROM planned WHERE id = %(id)s::int"

    def plan() -> str:
        [(name, text)] = execute("SELECT name, statement FROM pg_prepared_statements")
        assert "planned" in text
        return str(execute(f'EXPLAIN EXECUTE "{name}" (1)'))

    def execute(statement: str) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    execute("CREATE TABLE planned (id int PRIMARY KEY) WITH (autovacuum_enabled = false)")
    try:
        execute("VACUUM ANALYZE planned")
        for _ in range(prepared.THRESHOLD + 8):
            fetch(connection, look, {"id": 1})
        execute("INSERT INTO planned SELECT generate_series(1, 50000)")
        fetch(connection, look, {"id": 1})
        assert "Seq Scan" in plan()
        monkeypatch.setattr(prepared, "PLANS_SEC", 0.0)
        assert fetch(connection, look, {"id": 1}) == [(1,)]
        assert "Seq Scan" not in plan()
    finally:
        execute("DROP TABLE planned")
