"""What passes is tried again in a pass, and what does not is waited for once."""

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connections
from pytest_django import Settings

from jobreaper import db, reap
from jobreaper.db import retry
from jobreaper.models import Job as OwnJob
from jobreaper.reaper import PassResult, sending
from project.media.models import AsrJob, Job
from tests.reaper.passes import reap_all
from tests.rows import Rows, Sql, ago
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("impatient")


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
    passing_trouble("40P01", retry.RETRIES + 1)
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
    monkeypatch.setattr(sending, "LOCK_TIMEOUT_SEC", 60)
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
    monkeypatch.setattr(sending, "STATEMENT_TIMEOUT_SEC", 0.05)
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
    assert len(waits) == retry.RETRIES


def test_a_database_that_is_read_only_is_waited_for_once(
    jobs: Rows, asr_jobs: Rows, other: Any, waits: list[float]
) -> None:
    jobs.plant_expired()
    asr_jobs.plant_expired()
    other(OPTIONS={"options": "-c default_transaction_read_only=on"})
    errors = reap([Job, AsrJob, OwnJob], database="other").all_errors
    assert len(errors) >= 3
    assert all("read-only transaction" in error for error in errors)
    assert len(waits) == retry.RETRIES
