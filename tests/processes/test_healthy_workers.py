"""Workers that are well keep their jobs, whatever the database goes through meanwhile."""

import time

import pytest

from jobreaper import reap
from jobreaper.states import EventType, Status
from tests.processes.conftest import Ledger, ReadEvents, ReadRow, Sql, Start, beats
from tests.proxy import Proxy
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


def test_a_job_ten_leases_long_is_never_reaped_while_it_beats(
    start_worker: Start, job: int, row: ReadRow, ledger: Ledger, events: ReadEvents, sql: Sql
) -> None:
    """hexpm#1825: age alone condemns nothing."""
    worker = start_worker(DEFAULT_LEASE_SEC="1", HEARTBEAT_SEC="0.2")
    assert worker.ask("claim", job) == "claimed"
    ten_leases_old = "SELECT now() > claimed_at + interval '10 seconds' AS yes FROM jobs"
    while not sql(ten_leases_old)[0]["yes"]:
        result = reap()
        assert (result.requeued, result.failed, result.all_errors) == (0, 0, [])

    assert worker.ask("work_and_finish") == "finished"
    after = row(job)
    assert (after["attempt_count"], after["reap_count"], after["lease_epoch"]) == (1, 0, 1)
    assert len(ledger()) == 1
    assert events(job) == [EventType.JOB_FINISHED]


@pytest.mark.parametrize("verb", ["finish", "work_and_finish"])
def test_a_worker_whose_connections_are_terminated_beats_on_and_finishes(
    verb: str,
    start_worker: Start,
    database_url: str,
    job: int,
    row: ReadRow,
    events: ReadEvents,
    sql: Sql,
) -> None:
    """celery#4878: nobody recycles a worker's connections but the worker."""
    name = "worker-under-test"
    worker = start_worker(DATABASE_URL=f"{database_url}&application_name={name}")
    assert worker.ask("claim", job) == "claimed"
    assert beats(row, job)
    terminated = sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", name
    )
    assert len(terminated) == 2

    assert beats(row, job)
    if verb == "work_and_finish":
        # Only the worker can start its own transaction over.
        assert worker.ask(verb) == "OperationalError"
    assert worker.ask(verb) == "finished"
    assert row(job)["status"] == Status.SUCCESS
    assert events(job) == [EventType.JOB_FINISHED]


@pytest.mark.parametrize("outage", ["hang", "cut"])
def test_a_worker_that_cannot_reach_the_database_stops_before_its_lease_ends(
    outage: str, proxy: Proxy, start_worker: Start, job: int, row: ReadRow, ledger: Ledger, sql: Sql
) -> None:
    """pulpcore#5261: heartbeats that fail for hours do not leave the worker at work for hours."""
    worker = start_worker(DATABASE_URL=proxy.url)
    assert worker.ask("claim", job) == "claimed"
    assert beats(row, job)
    getattr(proxy, outage)()

    stopped_at = float(worker.ask("work_until_lost"))
    [left] = sql(
        "SELECT extract(epoch FROM lease_expires_at)::float8 AS lease_ends_at,"
        " extract(epoch FROM clock_timestamp())::float8 AS now FROM jobs"
    )
    skew = left["now"] - time.time()  # the server may be another machine
    assert stopped_at + skew <= left["lease_ends_at"] + 0.05
    assert row(job)["status"] == Status.PROCESSING

    until(lambda: reap().requeued_ids["jobs"] == [job])
    proxy.mend()
    assert worker.ask("check") == "LeaseLost"
    if outage == "cut":
        assert worker.ask("work_and_finish") == "OperationalError"
    assert worker.ask("work_and_finish") == "LeaseLost"
    assert ledger() == []


@pytest.mark.slow
@pytest.mark.parametrize("outage", ["hang", "cut"])
def test_an_outage_shorter_than_the_lease_costs_nothing(
    outage: str, proxy: Proxy, start_worker: Start, job: int, row: ReadRow, sql: Sql
) -> None:
    worker = start_worker(DATABASE_URL=proxy.url, DEFAULT_LEASE_SEC="6")
    assert worker.ask("claim", job) == "claimed"
    assert beats(row, job)
    getattr(proxy, outage)()
    silent = "SELECT now() > last_heartbeat_at + interval '1.5 seconds' AS yes FROM jobs"
    until(lambda: sql(silent)[0]["yes"])
    proxy.mend()

    assert beats(row, job)
    assert worker.ask("check") == "held"
    assert worker.ask("finish") == "finished"


def test_a_forked_child_beats_its_own_leases_and_leaves_the_parents_to_the_parent(
    start_worker: Start, job: int, row: ReadRow, events: ReadEvents, sql: Sql
) -> None:
    parent = start_worker()
    assert parent.ask("claim", job) == "claimed"
    name = parent.ask("identify")
    [other_job] = [found["id"] for found in sql("INSERT INTO jobs DEFAULT VALUES RETURNING id")]

    _, child_pid = parent.ask("fork").split()
    child_name = parent.ask("identify")
    assert child_name.split(":")[1] == child_pid
    assert child_name.rpartition(":")[2] != name.rpartition(":")[2]
    assert parent.ask("claim", other_job) == "claimed"
    assert beats(row, other_job)
    assert beats(row, job), "the parent beats on beside its child"

    parent.freeze()
    until(lambda: row(job)["expired"])
    assert reap().requeued_ids["jobs"] == [job]
    assert row(other_job)["locked_by"] == child_name
    assert parent.ask("finish") == "finished"
    assert row(other_job)["status"] == Status.SUCCESS
    parent.say("exit")

    parent.thaw()
    assert parent.answer() == "joined"
    assert parent.ask("finish") == "LeaseLost"
    assert parent.ask("claim", job) == "claimed", "the parent's connection is unharmed"
    assert beats(row, job)
    assert parent.ask("finish") == "finished"
    assert events(other_job) == [EventType.JOB_FINISHED]


def test_a_worker_ends_at_once_though_it_holds_a_lease(start_worker: Start, job: int) -> None:
    """The heartbeat thread keeps no process alive."""
    worker = start_worker()
    assert worker.ask("claim", job) == "claimed"
    worker.say("exit")
    assert worker.process.wait(30) == 0


def test_beats_reach_the_database_when_the_work_has_taken_every_pooled_connection(
    start_worker: Start, job: int, row: ReadRow
) -> None:
    worker = start_worker(POOL_SIZE="1")
    assert worker.ask("claim", job) == "claimed"
    assert worker.ask("work_and_finish_in_steps") == "effect written"
    assert beats(row, job)
    assert beats(row, job)
    assert worker.ask("go on") == "finish sent"
    assert worker.ask("go on") == "finished"
