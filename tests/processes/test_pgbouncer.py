"""Every verb through pgbouncer in transaction mode: no session state in the protocol."""

import json
from collections.abc import Iterator

import psycopg
import pytest

from jobreaper.states import EventType, Status
from tests.processes.conftest import Ledger, ReadEvents, ReadRow, Sql, Start, beats
from tests.processes.pgbouncer import needs_pgbouncer, pgbouncer
from tests.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.usefixtures("transactional_db"),
    needs_pgbouncer,
]


@pytest.fixture
def through_pgbouncer(dsn: str) -> Iterator[str]:
    """A DATABASE_URL that leads to the test database through pgbouncer."""
    with pgbouncer(dsn, "transaction") as url:
        yield url


def test_the_verbs_work_through_pgbouncer_in_transaction_mode(
    through_pgbouncer: str,
    start: Start,
    start_worker: Start,
    sql: Sql,
    row: ReadRow,
    events: ReadEvents,
    ledger: Ledger,
) -> None:
    where = {"DATABASE_URL": through_pgbouncer}
    verbs = {
        "work_and_finish": ("finished", EventType.JOB_FINISHED),
        "fail": ("retried", EventType.JOB_RETRIED),
        "release": ("released", EventType.JOB_RELEASED),
    }
    worker = start_worker(**where)
    for verb, (answer, event) in verbs.items():
        [job] = [found["id"] for found in sql("INSERT INTO jobs DEFAULT VALUES RETURNING id")]
        assert worker.ask("claim", job) == "claimed"
        assert beats(row, job)
        assert worker.ask(verb) == answer
        assert events(job) == [event]
    assert len(ledger()) == 1

    [job] = [found["id"] for found in sql("INSERT INTO jobs DEFAULT VALUES RETURNING id")]
    assert worker.ask("claim", job) == "claimed"
    worker.kill()
    until(lambda: row(job)["expired"])
    reaper = start("manage.py", "reap", "--format", "json", **where)
    result = json.loads(reaper.answer())
    assert result["tables"]["jobs"]["requeued"] == [job]
    assert result["errors"] == []


@pytest.mark.slow
def test_no_timeout_of_a_pass_or_a_beat_is_left_on_a_connection_of_pgbouncers(
    through_pgbouncer: str, start: Start, start_worker: Start, job: int, row: ReadRow
) -> None:
    where = {"DATABASE_URL": through_pgbouncer}
    worker = start_worker(**where)
    assert worker.ask("claim", job) == "claimed"
    assert beats(row, job)
    assert start("manage.py", "reap", **where).process.wait(30) == 0
    # A prepared statement is one of a single server's connection.
    with psycopg.connect(through_pgbouncer, autocommit=True, prepare_threshold=None) as client:
        for _ in range(20):
            for timeout in ("lock_timeout", "statement_timeout"):
                assert client.execute(f"SHOW {timeout}").fetchone() == ("0",)


@pytest.mark.slow
def test_a_fleet_works_off_its_jobs_through_pgbouncer_each_once(
    through_pgbouncer: str, start: Start, sql: Sql, ledger: Ledger
) -> None:
    """good_job#52: nothing is stranded on a connection that serves somebody else by now."""
    sql("INSERT INTO jobs (stage) SELECT 'clip' FROM generate_series(1, 40)")
    fleet = start("-m", "tests.processes.fleet", "8", DATABASE_URL=through_pgbouncer)
    assert fleet.answer() == "ready"
    until(lambda: sql("SELECT 1 FROM jobs HAVING bool_and(status = %s)", Status.SUCCESS))
    assert sorted(effect["job_id"] for effect in ledger()) == [
        found["id"] for found in sql("SELECT id FROM jobs ORDER BY id")
    ]
