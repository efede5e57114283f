"""Rows that cannot be written are remembered: tried again less and less often, and forgotten when
they could be written or are gone.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections, transaction
from pytest_django import Settings

from jobreaper import reap
from jobreaper.db import MOST_NAMED_ROWS
from jobreaper.models import RefusedRow
from jobreaper.reaper.dead_workers import give_back
from jobreaper.tables import table_of
from project.media.models import AsrJob, Job
from tests.metrics.page import scrape
from tests.rows import Rows, Sql, ago


@pytest.fixture(autouse=True)
def unheld(settings: Settings) -> None:
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 0}


@pytest.fixture
def curse(sql: Sql) -> Iterator[None]:
    """No row of stage `bad` can be updated; each try counts in `tries`."""
    sql("CREATE SEQUENCE tries")
    sql("""
        CREATE FUNCTION curse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM nextval('public.tries'); RAISE 'cursed' USING DETAIL = 'a secret'; END $$
    """)
    for table in ("jobs", "asr_jobs"):
        sql(
            f"CREATE TRIGGER curse BEFORE UPDATE ON {table} FOR EACH ROW"
            " WHEN (OLD.stage = 'bad') EXECUTE FUNCTION curse()"
        )
    yield
    sql("DROP FUNCTION curse CASCADE")
    sql("DROP SEQUENCE tries")


def lift(sql: Sql) -> None:
    sql(
        "CREATE OR REPLACE FUNCTION curse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN NEW; END $$"
    )


def tries(sql: Sql) -> int:
    [row] = sql("SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS n FROM tries")
    return int(row["n"])


def let_its_time_come(sql: Sql) -> None:
    sql("UPDATE jobreaper_refused_rows SET next_try_at = now() - interval '1 second'")


def remembered() -> list[RefusedRow]:
    return list(RefusedRow.objects.order_by("id"))


def reap_by_function(jobs: Rows) -> list[str]:
    return [row["job_id"] for row in jobs.sql("SELECT * FROM jobs_reap()")]


BY = pytest.mark.parametrize("by", ["Python", "function"])


def reap_jobs(jobs: Rows, by: str) -> list[str]:
    if by == "function":
        return reap_by_function(jobs)
    return [str(key) for key in reap([Job]).requeued_ids["jobs"]]


@BY
def test_a_row_that_cannot_be_written_is_remembered_and_left_out(
    jobs: Rows, curse: None, sql: Sql, by: str
) -> None:
    bad, good = jobs.plant_expired(stage="bad", lease_expires_at=ago(100)), jobs.plant_expired()
    before = jobs.now()
    assert reap_jobs(jobs, by) == [str(good)]
    [row] = remembered()
    assert (row.table, row.verb, row.key, row.tries) == ("jobs", "reap", str(bad), 1)
    assert row.error == "cursed"
    assert before <= row.since <= jobs.now()
    pause = row.next_try_at - row.since
    assert timedelta(seconds=59) < pause < timedelta(seconds=61)
    spent = tries(sql)
    # Once with the batch, once by itself.
    assert spent == 2
    later = jobs.plant_expired()
    assert reap_jobs(jobs, by) == [str(later)]
    assert reap_jobs(jobs, by) == []
    assert tries(sql) == spent
    assert [(again.tries, again.next_try_at) for again in remembered()] == [(1, row.next_try_at)]


@BY
def test_its_pause_doubles_from_a_minute_to_an_hour(
    jobs: Rows, curse: None, sql: Sql, by: str
) -> None:
    jobs.plant_expired(stage="bad")
    pauses = []
    for _ in range(9):
        let_its_time_come(sql)
        now = jobs.now()
        reap_jobs(jobs, by)
        [row] = remembered()
        pauses.append(round((row.next_try_at - now) / timedelta(minutes=1)))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (row.tries, row.since < now) == (9, True)
    # The first one with a batch of all too.
    assert tries(sql) == 10


@BY
def test_a_row_that_could_be_written_is_forgotten(
    jobs: Rows, curse: None, sql: Sql, by: str
) -> None:
    bad = jobs.plant_expired(stage="bad")
    reap_jobs(jobs, by)
    lift(sql)
    assert reap_jobs(jobs, by) == []
    let_its_time_come(sql)
    assert reap_jobs(jobs, by) == [str(bad)]
    assert jobs.event_types(bad) == ["reaper:requeued"]
    assert remembered() == []


@BY
@pytest.mark.parametrize("fate", ["gone", "finished", "well again"])
def test_a_row_that_is_no_longer_lost_is_forgotten(
    jobs: Rows, curse: None, sql: Sql, by: str, fate: str
) -> None:
    bad = jobs.plant_expired(stage="bad")
    reap_jobs(jobs, by)
    if fate == "gone":
        sql("DELETE FROM jobs WHERE id = %s", bad)
    else:
        lift(sql)
        changes = "status = 'success'" if fate == "finished" else "lease_expires_at = 'infinity'"
        sql(f"UPDATE jobs SET {changes} WHERE id = %s", bad)
    reap_jobs(jobs, by)
    assert len(remembered()) == 1
    let_its_time_come(sql)
    reap_jobs(jobs, by)
    assert remembered() == []


@BY
def test_a_row_that_is_locked_when_its_time_comes_is_not_forgotten(
    jobs: Rows, curse: None, sql: Sql, by: str, second_connection: psycopg.Connection[Any]
) -> None:
    bad = jobs.plant_expired(stage="bad")
    reap_jobs(jobs, by)
    let_its_time_come(sql)
    second_connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [bad])
    reap_jobs(jobs, by)
    assert [row.tries for row in remembered()] == [1]
    second_connection.rollback()
    reap_jobs(jobs, by)
    assert [row.tries for row in remembered()] == [2]


def test_a_pass_names_the_rows_that_it_leaves_out(jobs: Rows, asr_jobs: Rows, curse: None) -> None:
    bad = jobs.plant_expired(stage="bad")
    first = reap([Job, AsrJob])
    assert first.all_errors == [f"jobs: job {bad}: cursed"]
    # What is left out on purpose is no error of the pass; the metric and its alert tell of it.
    for dry_run in (False, True):
        later = reap([Job, AsrJob], dry_run=dry_run)
        assert (later.all_errors, later.refused) == ([], 1)
        assert later.tables["asr_jobs"].refused.total == 0
        [row] = later.tables["jobs"].refused.rows
        assert (row.key, row.error, row.tries) == (str(bad), "cursed", 1)


def test_the_command_names_them(jobs: Rows, curse: None) -> None:
    bad = jobs.plant_expired(stage="bad")
    reap([Job])
    said = StringIO()
    call_command("reap", "--table", "jobs", stdout=said)
    assert f"jobs: 1 row cannot be written: {bad} (cursed, 1 try, again at " in said.getvalue()
    said = StringIO()
    call_command("reap", "--table", "jobs", "--format", "json", stdout=said)
    told = json.loads(said.getvalue())
    assert told["refused"] == 1
    [row] = told["refused_rows"]["jobs"]
    [stored] = remembered()
    assert row == {
        "key": str(bad),
        "error": "cursed",
        "since": stored.since.isoformat(),
        "tries": 1,
        "next_try_at": stored.next_try_at.isoformat(),
    }


def test_of_many_the_first_are_named_and_all_are_counted(jobs: Rows, curse: None) -> None:
    for _ in range(MOST_NAMED_ROWS + 5):
        jobs.plant_expired(stage="bad")
    result = reap([Job])
    assert result.refused == MOST_NAMED_ROWS + 5
    assert len(result.tables["jobs"].refused.rows) == MOST_NAMED_ROWS


def test_what_a_row_holds_is_not_in_what_is_remembered(jobs: Rows, sql: Sql) -> None:
    jobs.plant_expired(payload='{"card": "4111"}', stage="bad")
    sql("ALTER TABLE jobs ADD CONSTRAINT never CHECK (stage <> 'bad' OR reap_count = 0)")
    try:
        result = reap([Job])
    finally:
        sql("ALTER TABLE jobs DROP CONSTRAINT never")
    [row] = remembered()
    assert "never" in row.error
    assert "4111" not in f"{row.error}{result.all_errors}"


def test_a_constraint_that_is_checked_at_the_commit_stops_no_other(jobs: Rows, sql: Sql) -> None:
    bad, good = jobs.plant_expired(stage="bad"), jobs.plant_expired()
    sql("""
        CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF NEW.stage = 'bad' THEN RAISE 'too late'; END IF; RETURN NULL; END $$
    """)
    sql("""
        CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON jobs DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION late()
    """)
    try:
        result = reap([Job])
    finally:
        sql("DROP FUNCTION late CASCADE")
    assert result.requeued_ids["jobs"] == [good]
    assert result.all_errors == [f"jobs: job {bad}: too late"]


@pytest.fixture
def reader(sql: Sql, curse: None) -> Iterator[str]:
    """A role that may do what a pass does, but for writing down what it cannot write."""
    sql("CREATE ROLE reader LOGIN")
    for table in ("jobs", "job_events", "jobreaper_passes", "jobreaper_totals", "jobreaper_stages"):
        sql(f"GRANT ALL ON {table} TO reader")
    sql("GRANT SELECT ON jobreaper_refused_rows TO reader")
    sql("GRANT ALL ON SEQUENCE tries TO reader")
    yield "reader"
    sql("DROP OWNED BY reader")
    sql("DROP ROLE reader")


@BY
def test_without_the_right_to_remember_a_pass_goes_on_and_says_so(
    jobs: Rows, curse: None, sql: Sql, reader: str, by: str
) -> None:
    bad = [jobs.plant_expired(stage="bad", lease_expires_at=ago(100)) for _ in range(3)]
    good = jobs.plant_expired()
    if by == "function":
        sql("GRANT EXECUTE ON FUNCTION jobs_reap(int), jobreaper_policies() TO reader")
        with psycopg.connect(**_as(reader), autocommit=True) as own:
            assert own.execute("SELECT job_id FROM jobs_reap(2)").fetchall() == [(str(good),)]
        [row] = sql("SELECT error FROM jobreaper_passes")
        errors = row["error"].splitlines()
    else:
        with connections["default"].cursor() as cursor:
            cursor.execute(f"SET ROLE {reader}")
        try:
            result = reap([Job], batch_size=2)
        finally:
            connections["default"].close()
        assert result.requeued_ids["jobs"] == [good]
        errors = result.all_errors
    assert [e for e in errors if "are not remembered: permission denied" in e]
    for key in bad:
        assert [e for e in errors if e == f"jobs: job {key}: cursed"]
    assert remembered() == []


def _as(role: str) -> dict[str, Any]:
    params = connections["default"].get_connection_params()
    kept = ("dbname", "host", "port")
    return {name: params[name] for name in kept if params.get(name)} | {"user": role}


def test_in_a_transaction_of_the_callers_it_is_remembered_with_it(jobs: Rows, curse: None) -> None:
    bad, good = jobs.plant_expired(stage="bad"), jobs.plant_expired()
    with transaction.atomic():
        assert reap([Job]).requeued_ids["jobs"] == [good]
        # The next one in the same transaction goes round it too.
        jobs_left = reap([Job])
        assert (jobs_left.all_errors, jobs_left.refused) == ([], 1)
    assert [row.key for row in remembered()] == [str(bad)]


def test_a_dead_workers_other_jobs_are_given_back_beside_one_that_cannot_be_written(
    jobs: Rows, curse: None
) -> None:
    bad = jobs.plant_running(stage="bad", locked_by="w1")
    good = [jobs.plant_running(locked_by="w1") for _ in range(3)]
    given_back = give_back(table_of(Job), "w1", "killed by SIGKILL")
    assert [job.pk for job in given_back] == good
    assert [job.run_again_in_ms for job in given_back] == [0, 0, 0]
    assert [jobs.event_types(key) for key in good] == [["job:worker_lost"]] * 3
    assert jobs.row(bad)["status"] == "processing"
    assert [(row.key, row.verb) for row in remembered()] == [(str(bad), "reap")]


def test_the_metric_counts_them_by_table(jobs: Rows, asr_jobs: Rows, curse: None) -> None:
    for rows, number in ((jobs, 2), (asr_jobs, 1)):
        for _ in range(number):
            rows.plant_expired(stage="bad")
    reap([Job, AsrJob])
    found = scrape().by("table", of="jobreaper_refused_rows")
    assert found == {"jobs": 2, "asr_jobs": 1}


@pytest.mark.slow
def test_500_jobs_beside_50_000_that_cannot_be_written_are_reaped_by_the_first_pass(
    jobs: Rows, curse: None, sql: Sql, settings: Settings
) -> None:
    # A pass ends its search when the next one is due, which a slow machine needs.
    settings.JOBREAPER |= {"REAPER_INTERVAL_SEC": 1000}
    # Analyzed when no job was running, as most tables are.
    sql("INSERT INTO jobs (status) SELECT 'success' FROM generate_series(1, 5000)")
    sql("ANALYZE jobs")
    sql("""
        INSERT INTO jobs (stage, status, lease_expires_at, attempt_count, lease_epoch)
        SELECT CASE WHEN n > 500 THEN 'bad' END, 'processing',
               now() - n * interval '1 second', 1, 1
          FROM generate_series(1, 50500) AS n
    """)
    result = reap([Job])
    assert result.requeued == 500
    assert result.refused == 50_000
    spent = tries(sql)
    # One each, and one for a batch now and then.
    assert spent <= 50_100
    assert reap([Job]).all_errors == []
    assert tries(sql) == spent
