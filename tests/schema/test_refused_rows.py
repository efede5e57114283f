"""The functions where the database refuses to write a row."""

from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.test import override_settings

from tests.refusals import OF_COUNTERS, WAYS, refusing
from tests.rows import Rows, Sql, ago

BAD = '{"bad": true}'


def plant(jobs: Rows, n: int = 4) -> tuple[int, list[int]]:
    """Insert a row that is first in line and will be refused, and good ones behind it."""
    bad = jobs.plant(payload=BAD, next_earliest_run_at=ago(100), stage="clip")
    return bad, [jobs.plant(stage="clip") for _ in range(n)]


def claim(sql: Sql, n: int = 1) -> list[int]:
    return [row["id"] for row in sql("SELECT * FROM jobs_claim('w', %s)", n)]


@pytest.fixture(params=[False, True], ids=["no limits", "limited"])
def functions(request: pytest.FixtureRequest, as_before: None) -> None:
    """The functions, without a stage whose jobs are counted and with one."""
    with override_settings(
        JOBREAPER={"STAGES": {"clip": {"max_running": 9} if request.param else {}}}
    ):
        call_command("reaper_sql", "--install", "--table", "jobs", verbosity=0)


@pytest.mark.parametrize("way", WAYS | OF_COUNTERS)
def test_a_row_that_no_claim_can_write_keeps_nobody_from_theirs(
    way: str, functions: None, jobs: Rows, sql: Sql
) -> None:
    bad, good = plant(jobs)
    with refusing(sql, "jobs", way):
        before = jobs.row(bad)
        assert claim(sql) == good[:1]
        [remembered] = sql("SELECT * FROM jobreaper_refused_rows")
        assert (remembered["verb"], remembered["key"]) == ("claim", str(bad))
        assert sorted(claim(sql, 9)) == good[1:]
        assert claim(sql, 9) == []
        assert jobs.row(bad) == before
        # Left out, it costs no further try.
        assert sql("SELECT tries FROM jobreaper_refused_rows") == [{"tries": 1}]
        # In a batch with it, each job was claimed once.
        assert {jobs.row(key)["lease_epoch"] for key in good} == {1}


def test_many_of_them_are_passed_in_one_call(jobs: Rows, sql: Sql) -> None:
    for _ in range(50):
        plant(jobs, 0)
    good = jobs.plant()
    with refusing(sql, "jobs", "trigger"):
        assert claim(sql) == [good]
        assert sql("SELECT count(*) FROM jobreaper_refused_rows") == [{"count": 50}]


def test_the_job_that_is_asked_for_raises_its_error(jobs: Rows, sql: Sql) -> None:
    bad, _ = plant(jobs)
    with refusing(sql, "jobs", "trigger"), pytest.raises(psycopg.Error, match="not this one"):
        sql("SELECT * FROM jobs_claim('w', job_id => %s)", bad)


def test_a_table_that_nobody_can_write_is_no_rows_fault(jobs: Rows, sql: Sql) -> None:
    plant(jobs)
    sql("ALTER TABLE jobs RENAME COLUMN deadline_at TO away")
    try:
        with pytest.raises(psycopg.Error, match="deadline_at"):
            claim(sql)
    finally:
        sql("ALTER TABLE jobs RENAME COLUMN away TO deadline_at")
    assert not sql("SELECT 1 FROM jobreaper_refused_rows")


def test_what_cannot_be_remembered_is_passed_all_the_same(jobs: Rows, sql: Sql) -> None:
    _, good = plant(jobs)
    with refusing(sql, "jobs", "trigger"):
        sql("ALTER TABLE jobreaper_refused_rows ADD CONSTRAINT full_up CHECK (false) NOT VALID")
        try:
            assert [claim(sql) for _ in good] == [[key] for key in good]
        finally:
            sql("ALTER TABLE jobreaper_refused_rows DROP CONSTRAINT full_up")


def test_a_pass_reaps_around_what_only_the_commit_would_refuse(jobs: Rows, sql: Sql) -> None:
    bad = jobs.plant_expired(payload=BAD)
    good = [jobs.plant_expired() for _ in range(3)]
    with refusing(sql, "jobs", "deferred trigger"):
        reaped = [int(row["job_id"]) for row in sql("SELECT * FROM jobs_reap()")]
        assert sorted(reaped) == good
        assert jobs.row(bad)["status"] == "processing"
        assert sql("SELECT * FROM jobs_reap()") == []


def test_what_the_caller_has_deferred_stays_deferred(
    jobs: Rows, sql: Sql, second_connection: psycopg.Connection[Any]
) -> None:
    """A transaction may mend until its commit what it has broken elsewhere."""
    sql("CREATE TABLE theirs (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    key = jobs.plant()
    try:
        with refusing(sql, "jobs", "deferred trigger"):
            second_connection.execute("INSERT INTO theirs VALUES (1), (1)")
            [(claimed, *_)] = second_connection.execute("SELECT * FROM jobs_claim('w')")
            second_connection.execute("DELETE FROM theirs")
            second_connection.commit()
    finally:
        sql("DROP TABLE theirs")
    assert claimed == key
    assert jobs.row(key)["status"] == "processing"


@pytest.mark.parametrize(
    "call", ["finish(%s, 'w')", "release(%s, 'w')", "fail(%s, 'w', 1, 'E', '')"]
)
def test_a_lost_lease_is_told_so_whether_that_can_be_recorded_or_not(
    call: str, jobs: Rows, sql: Sql
) -> None:
    key = jobs.plant()
    claim(sql)
    jobs.set(key, lease_epoch=9, locked_by="other")
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not this one'; END $$"
    )
    sql("CREATE TRIGGER refuse BEFORE INSERT ON job_events FOR EACH ROW EXECUTE FUNCTION refuse()")
    try:
        [answer] = sql(f"SELECT jobs_{call} AS is_held", key)
    finally:
        sql("DROP FUNCTION refuse CASCADE")
    assert answer["is_held"] is False
    assert jobs.row(key)["status"] == "processing"
