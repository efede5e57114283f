"""Rows that cannot be written, or are locked, stop no other row of a pass."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pytest_django import Settings

from jobreaper import reap
from jobreaper.db import MOST_NAMED_ROWS
from jobreaper.reaper import table_pass
from project.media.models import AsrJob, Job
from tests.rows import Rows, Sql, ago

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_one_bad_row_stops_no_other(jobs: Rows, curse: Any, place: int, batch_size: int) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')")
    planted = [
        jobs.plant_expired(stage="bad" if n == place else None, lease_expires_at=ago(100 - n))
        for n in range(7)
    ]
    bad = planted.pop(place)
    before = jobs.row(bad)
    result = reap([Job], batch_size=batch_size)
    assert sorted(result.requeued_ids["jobs"]) == planted
    assert result.all_errors == [f"jobs: job {bad}: cursed"]
    assert jobs.row(bad) == before
    assert jobs.events(bad) == []
    assert [len(jobs.events(key)) for key in planted] == [1] * 6


def test_a_row_that_breaks_a_constraint_stops_no_other(jobs: Rows, sql: Sql) -> None:
    good, bad = jobs.plant_expired(), jobs.plant_expired(stage="bad")
    sql("ALTER TABLE jobs ADD CONSTRAINT never CHECK (stage <> 'bad' OR reap_count = 0)")
    try:
        result = reap([Job])
    finally:
        sql("ALTER TABLE jobs DROP CONSTRAINT never")
    assert result.requeued_ids["jobs"] == [good]
    [error] = result.all_errors
    assert error.startswith(f"jobs: job {bad}: new row for relation")


def test_several_bad_rows_are_named_one_by_one(jobs: Rows, curse: Any) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')")
    bad = [jobs.plant_expired(stage="bad") for _ in range(3)]
    good = [jobs.plant_expired() for _ in range(5)]
    result = reap([Job], batch_size=3)
    assert sorted(result.requeued_ids["jobs"]) == good
    assert sorted(result.all_errors) == sorted(f"jobs: job {key}: cursed" for key in bad)


@pytest.mark.parametrize("batch_size", [1, 10, 1000])
def test_any_number_of_bad_rows_stops_no_other(jobs: Rows, curse: Any, batch_size: int) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')")
    for _ in range(MOST_NAMED_ROWS + 25):
        jobs.plant_expired(stage="bad", lease_expires_at=ago(100))
    good = [jobs.plant_expired() for _ in range(5)]
    result = reap([Job], batch_size=batch_size)
    assert sorted(result.requeued_ids["jobs"]) == good
    *named, rest = result.all_errors
    assert len(named) == MOST_NAMED_ROWS
    assert rest == "jobs: 25 more rows cannot be written"


def test_a_lost_job_whose_unique_place_is_taken_stops_no_other(jobs: Rows, sql: Sql) -> None:
    sql("CREATE UNIQUE INDEX one_waiting ON jobs (stage) WHERE status = 'queued'")
    try:
        for n in range(30):
            jobs.plant(stage=f"taken {n}")
            jobs.plant_expired(stage=f"taken {n}", lease_expires_at=ago(100))
        good = [jobs.plant_expired(stage=f"free {n}") for n in range(5)]
        result = reap([Job])
    finally:
        sql("DROP INDEX one_waiting")
    assert sorted(result.requeued_ids["jobs"]) == good


def test_a_table_whose_rows_are_all_bad_is_given_up_when_its_time_is_spent(
    jobs: Rows,
    asr_jobs: Rows,
    curse: Any,
    sql: Sql,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')")
    settings.JOBREAPER = {"REAPER_INTERVAL_SEC": 2, "RECOVERY_GRACE_SEC": 0}
    monkeypatch.setattr(table_pass, "LEAST_SEARCH_SEC", 0.1)
    sql(
        "INSERT INTO jobs (stage, status, lease_expires_at)"
        " SELECT 'bad', 'processing', now() - interval '1 day' FROM generate_series(1, 20000)"
    )
    key = asr_jobs.plant_expired()
    result = reap([Job, AsrJob])
    assert result.requeued_ids == {"jobs": [], "asr_jobs": [key]}
    assert len(result.all_errors) == MOST_NAMED_ROWS + 1
    # The other table has its share of the pass's time.
    assert result.tables["jobs"].duration_ms < 1500


@pytest.mark.parametrize("code", ["42501", "42P01", "0A000", "XX001", "08000"])
def test_a_row_is_passed_over_whatever_the_error(jobs: Rows, curse: Any, code: str) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')", code=code)
    bad, good = jobs.plant_expired(stage="bad", lease_expires_at=ago(100)), jobs.plant_expired()
    result = reap([Job])
    assert result.requeued_ids["jobs"] == [good]
    [error] = result.all_errors
    assert error.startswith(f"jobs: job {bad}: cursed")


def test_a_locked_row_beside_a_bad_one_is_left_to_the_next_pass(
    jobs: Rows, curse: Any, second_connection: psycopg.Connection[Any]
) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')")
    locked, bad, good = (
        jobs.plant_expired(stage=stage, lease_expires_at=ago(overdue))
        for stage, overdue in (("locked", 100), ("bad", 50), ("good", 10))
    )
    second_connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [locked])
    result = reap([Job], batch_size=1)
    assert result.requeued_ids["jobs"] == [good]
    assert result.all_errors == [f"jobs: job {bad}: cursed"]
    second_connection.rollback()
    assert reap([Job], batch_size=1).requeued_ids["jobs"] == [locked]


def test_many_locked_rows_beside_a_bad_one_stop_no_other(
    jobs: Rows, curse: Any, second_connection: psycopg.Connection[Any]
) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')")
    bad = jobs.plant_expired(stage="bad", lease_expires_at=ago(100))
    for _ in range(40):
        jobs.plant_expired(stage="locked", lease_expires_at=ago(50))
    good = jobs.plant_expired(lease_expires_at=ago(10))
    second_connection.execute("SELECT FROM jobs WHERE stage = 'locked' FOR UPDATE")
    result = reap([Job], batch_size=40 + 1)
    assert result.requeued_ids["jobs"] == [good]
    assert result.all_errors == [f"jobs: job {bad}: cursed"]


@pytest.fixture
def unchanged(sql: Sql) -> Iterator[None]:
    """Let a reap of some rows of `jobs` be written as if it had not been."""
    sql("""
        CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RETURN OLD; END $$
    """)
    sql("""
        CREATE TRIGGER stay BEFORE UPDATE ON jobs
        FOR EACH ROW WHEN (OLD.stage = 'stays') EXECUTE FUNCTION stay()
    """)
    yield
    sql("DROP FUNCTION stay CASCADE")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("is_bad", [False, True])
def test_a_row_is_reaped_once_a_pass_whatever_becomes_of_it(
    jobs: Rows, curse: Any, is_bad: bool
) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')")
    staying = [jobs.plant_expired(stage="stays", lease_expires_at=ago(100)) for _ in range(5)]
    bad = [jobs.plant_expired(stage="bad", lease_expires_at=ago(50)) for _ in range(is_bad)]
    good = [jobs.plant_expired() for _ in range(3)]
    result = reap([Job], batch_size=2)
    assert sorted(result.requeued_ids["jobs"]) == staying + good
    assert result.all_errors == [f"jobs: job {key}: cursed" for key in bad]
    assert [len(jobs.events(key)) for key in staying + good] == [1] * 8
