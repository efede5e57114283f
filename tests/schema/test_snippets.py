"""The SQL that `docs/sql-functions.md` offers runs, and does what the page says."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.docs import markdown
from tests.rows import Rows, Sql, ago

pytestmark = pytest.mark.usefixtures("transactional_db")

PAGE = markdown.page("sql-functions")


def snippet(first_line: str) -> str:
    codes = [code for _, code in markdown.blocks(PAGE, "sql")]
    [code] = [code for code in codes if code.startswith(f"-- {first_line}\n")]
    return code


@pytest.fixture
def executor_jobs(sql: Sql) -> Rows:
    return Rows(sql, "executor_jobs")


def stale(jobs: Rows, **columns: object) -> object:
    return jobs.plant(
        **{
            "type": "run_tsa",
            "status": "running",
            "locked_at": ago(35 * 60),
            "locked_by": "executor-1",
            "attempts": 1,
            **columns,
        }
    )


@pytest.fixture
def reap_everything(sql: Sql) -> Iterator[None]:
    sql(snippet("reap until nothing is left"))
    yield
    sql("DROP PROCEDURE reap_everything")


def scheduled() -> list[str]:
    """What the database is to run every minute."""
    calls = re.findall(r"\$\$(.*?)\$\$", snippet("pg_cron"))
    assert len(calls) == 2
    return calls


@pytest.fixture
def orchestrator(sql: Sql) -> Iterator[None]:
    sql(snippet("an orchestrator"))
    yield
    sql("DROP FUNCTION process_orchestrator_jobs()")


def test_every_function_of_the_page_is_there_with_its_signature(sql: Sql) -> None:
    signatures = {
        row["name"]: row["arguments"]
        for row in sql(
            "SELECT proname AS name, pg_get_function_arguments(oid) AS arguments FROM pg_proc"
            " WHERE proname ~ '^(jobs|jobreaper_worker)_'"
        )
    }
    types = {"integer": "int", "DEFAULT": "default", "NULL::": "null::"}
    for name, arguments in signatures.items():
        for theirs, ours in types.items():
            arguments = arguments.replace(theirs, ours)
        arguments = re.sub(r"null::[\w\[\]]+", "null", arguments)
        assert f"`{name}({arguments})`" in PAGE
    assert len(signatures) == 8


def test_a_workers_statements(sql: Sql, jobs: Rows) -> None:
    key = jobs.plant(stage="clip")
    claim, heartbeat, finish = (
        line for line in snippet("a worker's statements").splitlines() if line.startswith("SELECT")
    )
    [row] = sql(claim)
    assert row == {"id": key, "lease_epoch": 1, "payload": {}}
    assert sql(heartbeat.replace("(1,", f"({key},")) == [{"jobs_heartbeat": True}]
    assert sql(finish.replace("(1,", f"({key},")) == [{"jobs_finish": True}]


def test_the_functions_of_executor_jobs(sql: Sql, executor_jobs: Rows) -> None:
    reclaim, heartbeat = snippet("executor_jobs").split(";\n")[:2]
    stale(executor_jobs)
    [row] = sql(reclaim)
    assert row["outcome"] == "requeued"
    assert sql(heartbeat) == [{"update_job_heartbeat": False}]


@pytest.mark.usefixtures("reap_everything")
def test_the_scheduled_job_reaps_until_nothing_is_left(
    sql: Sql, jobs: Rows, executor_jobs: Rows
) -> None:
    # More than two batches.
    sql("""
        INSERT INTO jobs (status, lease_expires_at, lease_epoch, attempt_count, locked_by)
        SELECT 'processing', now() - interval '1 minute', 1, 1, 'w' FROM generate_series(1, 2100)
    """)
    stale(executor_jobs)
    for call in scheduled():
        sql(call)
    assert sql("SELECT count(*) FROM jobs WHERE status = 'queued'") == [{"count": 2100}]
    assert sql("SELECT count(*) FROM job_events") == [{"count": 2101}]
    [passes] = sql("SELECT count(*), sum(requeued) FROM jobreaper_passes WHERE trigger = 'sql'")
    assert passes == {"count": 6, "sum": 2101}


@pytest.mark.usefixtures("reap_everything")
def test_a_table_in_trouble_keeps_no_other_from_its_scheduled_job(
    sql: Sql,
    jobs: Rows,
    executor_jobs: Rows,
    second_connection: psycopg.Connection[tuple[object, ...]],
) -> None:
    locked, free = jobs.plant_expired(), stale(executor_jobs)
    second_connection.execute("LOCK TABLE jobs")
    sql("SET statement_timeout = '300ms'")
    errors = []
    for call in scheduled():
        try:
            sql(call)
        except psycopg.errors.QueryCanceled as error:
            errors.append(error)
    second_connection.rollback()
    assert len(errors) == 1
    assert executor_jobs.row(free)["status"] == "queued"
    assert jobs.row(locked)["status"] == "processing"


@pytest.mark.usefixtures("reap_everything")
def test_the_batches_before_a_timeout_are_kept(sql: Sql, jobs: Rows) -> None:
    sql("""
        INSERT INTO jobs (status, lease_expires_at, lease_epoch, attempt_count, locked_by)
        SELECT 'processing', now() - interval '1 hour', 1, 1, 'w' FROM generate_series(1, 1000)
    """)
    slow = jobs.plant_expired(stage="slow")
    sql("""
        CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_sleep(60); RETURN new; END $$
    """)
    sql("""
        CREATE TRIGGER sleep BEFORE UPDATE ON jobs FOR EACH ROW WHEN (new.stage = 'slow')
        EXECUTE FUNCTION sleep()
    """)
    try:
        sql("SET statement_timeout = '4s'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            sql("CALL reap_everything('jobs_reap')")
    finally:
        sql("DROP FUNCTION sleep CASCADE")
    assert sql("SELECT count(*) FROM jobs WHERE status = 'queued'") == [{"count": 1000}]
    assert jobs.row(slow)["status"] == "processing"


@pytest.mark.usefixtures("orchestrator")
def test_the_orchestrator_reclaims_then_wakes_the_worker(
    sql: Sql, executor_jobs: Rows, second_connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    job = stale(executor_jobs)
    second_connection.autocommit = True
    second_connection.execute("LISTEN executor_jobs")
    assert sql("SELECT process_orchestrator_jobs() AS waiting") == [{"waiting": 1}]
    assert executor_jobs.row(job)["status"] == "queued"
    [note] = second_connection.notifies(timeout=10, stop_after=1)
    assert (note.channel, note.payload) == ("executor_jobs", "1")


def no_events(sql: Sql, other: psycopg.Connection[Any]) -> None:
    sql("ALTER TABLE job_events RENAME TO elsewhere")


def a_statement_timeout(sql: Sql, other: psycopg.Connection[Any]) -> None:
    other.execute("LOCK TABLE job_events")


def a_failed_assertion(sql: Sql, other: psycopg.Connection[Any]) -> None:
    sql("""
        CREATE FUNCTION doubt() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN ASSERT false, 'doubt'; END $$
    """)
    sql("CREATE TRIGGER doubt BEFORE INSERT ON jobreaper_passes EXECUTE FUNCTION doubt()")


@pytest.fixture
def mended(sql: Sql) -> Iterator[None]:
    yield
    sql("ALTER TABLE IF EXISTS elsewhere RENAME TO job_events")
    sql("DROP FUNCTION IF EXISTS doubt CASCADE")


@pytest.mark.usefixtures("orchestrator", "mended")
@pytest.mark.parametrize("trouble", [no_events, a_statement_timeout, a_failed_assertion])
def test_the_orchestrator_goes_on_when_reclaiming_fails(
    sql: Sql,
    executor_jobs: Rows,
    second_connection: psycopg.Connection[Any],
    dsn: str,
    trouble: Callable[[Sql, psycopg.Connection[Any]], None],
) -> None:
    job = stale(executor_jobs)
    executor_jobs.plant(type="run_tsa")
    trouble(sql, second_connection)
    with psycopg.connect(dsn, autocommit=True) as orchestrator:
        warnings: list[str] = []
        orchestrator.add_notice_handler(lambda d: warnings.append(str(d.message_primary)))
        orchestrator.execute("LISTEN executor_jobs; SET statement_timeout = '500ms'")
        [waiting] = orchestrator.execute("SELECT process_orchestrator_jobs()").fetchall()
        assert waiting == (1,)
        [note] = orchestrator.notifies(timeout=10, stop_after=1)
        assert note.payload == "1"
        assert warnings[-1].startswith("reclaiming stale jobs failed: ")
    assert executor_jobs.row(job)["status"] == "running"


@pytest.mark.usefixtures("orchestrator")
def test_the_orchestrator_does_not_wait_for_ever_after_its_timeout(
    sql: Sql, second_connection: psycopg.Connection[Any]
) -> None:
    second_connection.execute("LOCK TABLE executor_jobs")
    sql("SET statement_timeout = '500ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        sql("SELECT process_orchestrator_jobs()")


def test_views_have_the_columns_of_the_page(sql: Sql, jobs: Rows) -> None:
    jobs.plant_running()
    [shown] = sql("TABLE jobs_stale_monitor")
    [documented] = [
        markdown.code(cell)
        for view, cell in markdown.rows(markdown.section(PAGE, "Views"))
        if "monitor" in view
    ]
    assert list(shown) == documented
