"""What goes wrong in a pass stays with the table, the row or the try that it happened to."""

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connections
from pytest_django import Settings

from jobreaper import db, reap, reaper
from jobreaper.db import MOST_NAMED_ROWS
from jobreaper.models import Job as OwnJob
from jobreaper.reaper import ENOUGH_IN_VAIN, PassResult
from project.media.models import AsrJob, Job
from tests.rows import Rows, Sql, ago
from tests.waiting import until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """Waits as they are, only shorter."""
    monkeypatch.setattr(db, "FIRST_RETRY_SEC", 0.001)
    monkeypatch.setattr(reaper, "LOCK_TIMEOUT_SEC", 0.02)
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 0}


def reap_all() -> PassResult:
    return reap([Job, AsrJob, OwnJob])


# A table.


def test_a_table_locked_by_a_migration_stops_no_other(
    jobs: Rows, asr_jobs: Rows, second_connection: psycopg.Connection[Any], sql: Sql
) -> None:
    locked, free = jobs.plant_expired(), asr_jobs.plant_expired()
    second_connection.execute("ALTER TABLE jobs ADD COLUMN new text")
    result = reap_all()
    assert result.requeued_ids["asr_jobs"] == [free]
    assert result.all_errors == ["jobs: canceling statement due to lock timeout"]
    [row] = sql("TABLE jobreaper_passes")
    assert row["error"] == "jobs: canceling statement due to lock timeout"
    second_connection.rollback()
    assert reap_all().requeued_ids["jobs"] == [locked]


@pytest.fixture
def curse(sql: Sql) -> Iterator[Any]:
    """Make updates of `jobs` fail."""

    def cast(each: str, code: str = "P0001") -> None:
        sql(f"""
            CREATE FUNCTION curse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE 'cursed' USING ERRCODE = '{code}'; END $$
        """)
        sql(f"CREATE TRIGGER curse BEFORE UPDATE ON jobs FOR EACH {each} EXECUTE FUNCTION curse()")

    yield cast
    sql("DROP FUNCTION IF EXISTS curse CASCADE")


@pytest.fixture
def renamed(sql: Sql) -> Iterator[Any]:
    """Take a table or a column away for a while."""
    undo = []

    def rename(what: str, name: str) -> None:
        sql(f"ALTER TABLE {what} {name} TO away")
        column = name.startswith("RENAME COLUMN")
        kept = name.removeprefix("RENAME COLUMN ")
        undo.append(
            f"ALTER TABLE {what} RENAME COLUMN away TO {kept}"
            if column
            else f"ALTER TABLE away RENAME TO {what}"
        )

    yield rename
    for statement in undo:
        sql(statement)


MIGRATE = "run `manage.py migrate` on this database"


@pytest.mark.parametrize("planted", [0, 1, 3])
def test_a_missing_table_stops_no_other(
    asr_jobs: Rows, jobs: Rows, renamed: Any, planted: int
) -> None:
    for _ in range(planted):
        jobs.plant_expired()
    key = asr_jobs.plant_expired()
    renamed("jobs", "RENAME")
    result = reap_all()
    assert result.requeued_ids["asr_jobs"] == [key]
    assert result.all_errors == [f'jobs: relation "jobs" does not exist: {MIGRATE}']


# One that the search for expired rows needs, and one that only the update does.
@pytest.mark.parametrize("column", ["lease_expires_at", "dispatched_at"])
@pytest.mark.parametrize("planted", [0, 1, 3])
def test_a_missing_column_stops_no_other_table(
    asr_jobs: Rows, jobs: Rows, renamed: Any, column: str, planted: int
) -> None:
    for _ in range(planted):
        jobs.plant_expired()
    key = asr_jobs.plant_expired()
    renamed("jobs", f"RENAME COLUMN {column}")
    result = reap_all()
    assert result.requeued_ids["asr_jobs"] == [key]
    [error] = result.all_errors
    assert error.startswith("jobs: column ")
    assert error.endswith(MIGRATE)


@pytest.mark.parametrize("what", ["RENAME", "RENAME COLUMN last_error"])
def test_what_is_missing_of_a_table_that_django_does_not_manage_is_not_said_to_be_migrated(
    renamed: Any, what: str
) -> None:
    renamed("executor_jobs", what)
    [error] = reap(["executor_jobs"]).all_errors
    assert error.startswith("executor_jobs: ")
    assert error.endswith(f"{MIGRATE}, or add by hand what Django does not manage")


@pytest.mark.parametrize("planted", [0, 1, 3])
def test_a_table_that_refuses_every_update_stops_no_other(
    asr_jobs: Rows, jobs: Rows, curse: Any, planted: int
) -> None:
    # As one without the permission to update it would: even a batch of no rows is refused.
    curse(each="STATEMENT")
    for _ in range(planted):
        jobs.plant_expired()
    key = asr_jobs.plant_expired()
    result = reap_all()
    assert result.requeued_ids["asr_jobs"] == [key]
    assert result.all_errors[-1] == "jobs: cursed"


def test_missing_events_stop_the_pass_and_nothing_is_reaped_unrecorded(
    jobs: Rows, renamed: Any
) -> None:
    key = jobs.plant_expired()
    before = jobs.row(key)
    renamed("job_events", "RENAME")
    [error] = reap([Job]).all_errors
    assert error == f'jobs: relation "job_events" does not exist: {MIGRATE}'
    assert jobs.row(key) == before


def test_a_pass_that_cannot_be_recorded_reaps_all_the_same(jobs: Rows, renamed: Any) -> None:
    key = jobs.plant_expired()
    renamed("jobreaper_passes", "RENAME")
    result = reap([Job], hold=False)
    assert result.requeued_ids["jobs"] == [key]
    [error] = result.all_errors
    assert error.startswith("the pass could not be recorded: ")


def test_when_it_cannot_be_told_whether_to_hold_nothing_is_reaped(jobs: Rows, renamed: Any) -> None:
    # Unknown is not well.
    jobs.plant_expired()
    renamed("jobreaper_passes", "RENAME")
    result = reap([Job])
    assert result.requeued == 0
    assert result.all_errors


# A row.


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


def test_good_rows_are_found_among_more_bad_ones_than_there_is_time_for(
    jobs: Rows, curse: Any, sql: Sql, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')")
    settings.JOBREAPER = {"REAPER_INTERVAL_SEC": 0.000001, "RECOVERY_GRACE_SEC": 0}
    monkeypatch.setattr(reaper, "LEAST_SEARCH_SEC", 4)
    sql(
        "INSERT INTO jobs (stage, status, lease_expires_at)"
        " SELECT 'bad', 'processing', now() - interval '1 day' FROM generate_series(1, 20000)"
    )
    good = [jobs.plant_expired() for _ in range(5)]
    result = reap([Job])
    assert sorted(result.requeued_ids["jobs"]) == good
    assert result.duration_ms < 8000


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
    monkeypatch.setattr(reaper, "LEAST_SEARCH_SEC", 0.1)
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
    for _ in range(2 * ENOUGH_IN_VAIN):
        jobs.plant_expired(stage="locked", lease_expires_at=ago(50))
    good = jobs.plant_expired(lease_expires_at=ago(10))
    second_connection.execute("SELECT FROM jobs WHERE stage = 'locked' FOR UPDATE")
    result = reap([Job], batch_size=2 * ENOUGH_IN_VAIN + 1)
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


def test_a_bad_row_is_tried_again_by_the_next_pass(jobs: Rows, curse: Any, sql: Sql) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')")
    bad = jobs.plant_expired(stage="bad")
    assert reap([Job]).requeued == 0
    sql("DROP FUNCTION curse CASCADE")
    assert reap([Job]).requeued_ids["jobs"] == [bad]


# A try.


@pytest.fixture
def passing_trouble(sql: Sql) -> Iterator[Any]:
    """Make the first reaps of a job fail, each with a given error of the server's."""

    def cause(code: str, times: int) -> None:
        # A sequence goes on though the transaction that asked for its number is rolled back.
        sql("CREATE SEQUENCE tries")
        sql(f"""
            CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF nextval('tries') <= {times} THEN
                    RAISE 'it will pass' USING ERRCODE = '{code}';
                END IF;
                RETURN NEW;
            END $$
        """)
        sql("CREATE TRIGGER trouble BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION trouble()")

    yield cause
    sql("DROP FUNCTION IF EXISTS trouble CASCADE")
    sql("DROP SEQUENCE IF EXISTS tries")


@pytest.mark.parametrize("code", sorted(db.TRANSIENT_SQLSTATES))
def test_a_transient_error_is_tried_again(jobs: Rows, passing_trouble: Any, code: str) -> None:
    passing_trouble(code, 2)
    key = jobs.plant_expired()
    result = reap([Job])
    assert result.requeued_ids["jobs"] == [key]
    assert result.all_errors == []
    assert len(jobs.events(key)) == 1


def test_a_transient_error_that_stays_is_reported_and_the_next_pass_goes_on(
    jobs: Rows, asr_jobs: Rows, passing_trouble: Any
) -> None:
    passing_trouble("40P01", db.RETRIES + 1)
    key, other = jobs.plant_expired(), asr_jobs.plant_expired()
    result = reap_all()
    assert result.requeued_ids["asr_jobs"] == [other]
    assert result.all_errors == ["jobs: it will pass"]
    assert reap_all().requeued_ids["jobs"] == [key]


def test_a_reaper_whose_session_is_ended_connects_again(
    jobs: Rows,
    second_connection: psycopg.Connection[Any],
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reaper, "LOCK_TIMEOUT_SEC", 60)
    key = jobs.plant_expired()
    results: list[PassResult] = []

    def run() -> None:
        try:
            results.append(reap([Job]))
        finally:
            connections.close_all()

    second_connection.execute("LOCK TABLE jobs")
    thread = threading.Thread(target=run)
    thread.start()
    try:
        waiting = until(
            lambda: sql(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND datname = current_database()"
            )
        )
        sql("SELECT pg_terminate_backend(%s, 5000)", waiting[0]["pid"])
    finally:
        second_connection.rollback()
        thread.join()
    [result] = results
    assert result.all_errors == []
    assert result.requeued_ids["jobs"] == [key]
    assert len(jobs.events(key)) == 1


def test_a_server_that_comes_back_in_the_middle_of_a_pass_holds_the_rest_of_it(
    jobs: Rows, asr_jobs: Rows, sql: Sql, settings: Settings
) -> None:
    sql(
        "INSERT INTO jobreaper_passes (started_at, trigger, reaper, counts)"
        " VALUES ('2001-01-01', 'beat', 'r', '{}')"
    )
    first, _, _ = (jobs.plant_expired(lease_expires_at=ago(s)) for s in (100, 50, 20))
    asr_jobs.plant_expired()

    def restart(table: str, reaped: int) -> None:
        # For the guard any server has started within so long a grace.
        settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 999_999}
        [row] = sql(
            "SELECT pg_terminate_backend(pid, 5000) AS ended FROM pg_stat_activity WHERE pid = %s",
            connections["default"].connection.info.backend_pid,
        )
        assert row["ended"]

    result = reap([Job, AsrJob], batch_size=1, progress=restart)
    assert result.requeued_ids == {"jobs": [first], "asr_jobs": []}
    assert "PostgreSQL came up" in str(result.held_reason)
    assert result.all_errors == []
    [row] = sql("SELECT * FROM jobreaper_passes WHERE started_at > '2001-01-02'")
    assert (row["held"], row["requeued"], row["held_reason"]) == (True, 1, result.held_reason)


def test_a_statement_that_takes_too_long_is_given_up_at_once(
    jobs: Rows, asr_jobs: Rows, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Trying it again would take as long again; more time does not heal a lost index.
    monkeypatch.setattr(reaper, "STATEMENT_TIMEOUT_SEC", 0.05)
    jobs.plant_expired(stage="slow")
    key = asr_jobs.plant_expired()
    sql("CREATE SEQUENCE tries")
    sql("""
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM nextval('tries'), pg_sleep(5);
            RETURN NEW;
        END $$
    """)
    sql("CREATE TRIGGER slow BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION slow()")
    try:
        result = reap_all()
        tries = sql("SELECT last_value FROM tries")[0]["last_value"]
    finally:
        sql("DROP FUNCTION slow CASCADE")
        sql("DROP SEQUENCE tries")
    assert result.requeued_ids["asr_jobs"] == [key]
    assert result.all_errors == ["jobs: canceling statement due to statement timeout"]
    assert tries == 1


# A database. An outage is waited for once, not by each statement in turn.


@pytest.fixture
def other() -> Iterator[Any]:
    """An alias "other" for the test database, with settings of its own."""

    def make(**settings: Any) -> None:
        connections.settings["other"] = {**connections["default"].settings_dict, **settings}

    yield make
    connections["other"].close()
    del connections["other"]
    del connections.settings["other"]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between tries, none of which is waited."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    return slept


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"NAME": "nowhere"}, 'database "nowhere" does not exist'),
        ({"HOST": "127.0.0.1", "PORT": "1"}, "Connection refused"),
    ],
)
def test_a_database_that_is_not_there_is_waited_for_once(
    other: Any, waits: list[float], where: dict[str, str], words: str
) -> None:
    other(**where)
    [pass_failed, not_recorded] = reap(database="other").all_errors
    assert words in pass_failed
    assert words in not_recorded
    assert len(waits) == db.RETRIES


def test_a_database_that_is_read_only_is_waited_for_once(
    jobs: Rows, asr_jobs: Rows, other: Any, waits: list[float]
) -> None:
    jobs.plant_expired()
    asr_jobs.plant_expired()
    other(OPTIONS={"options": "-c default_transaction_read_only=on"})
    errors = reap([Job, AsrJob, OwnJob], database="other").all_errors
    assert len(errors) >= 3
    assert all("read-only transaction" in error for error in errors)
    assert len(waits) == db.RETRIES
