"""`manage.py work` as a process: started, stopped, killed."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from jobreaper import enqueue, enqueue_many, reap
from jobreaper.models import Job
from tests.queue.processes import PATIENCE_SEC, Start
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


def statuses(jobs: Rows) -> set[str]:
    return {row["status"] for row in jobs.all().values()}


def test_once_runs_what_is_due_says_what_it_did_and_exits(work: Start, jobs: Rows) -> None:
    enqueue_many([{}] * 30, type="noop")
    waits = enqueue("nobodys")
    worker = work("--once")
    assert worker.process.wait(PATIENCE_SEC) == 0
    assert worker.lines() == ["30 succeeded, 0 failed, 0 given back, 0 lost"]
    assert "{'nobodys': 1}" in worker.log
    assert jobs.row(waits.pk)["status"] == "queued"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_ends_what_runs_gives_the_rest_back_and_exits_with_0(
    number: signal.Signals, work: Start, jobs: Rows
) -> None:
    """celery#2700: a rolling deploy orphans nothing, and eats no attempts."""
    # By the pace of the first ones the worker claims hundreds at once, these among them.
    enqueue_many([{}] * 100, type="noop")
    [running] = enqueue_many([{}], type="until-told").ids
    behind = enqueue_many([{}] * 500, type="noop").ids
    worker = work("--no-listen", lease_sec=60)
    assert worker.answer() == f"began {running}"
    worker.process.send_signal(number)
    until(lambda: _with_status(jobs, "processing") == 1)
    worker.say("go on")
    assert worker.process.wait(PATIENCE_SEC) == 0
    released = {pk for pk in behind if "job:released" in jobs.event_types(pk)}
    assert released
    assert worker.answer() == f"101 succeeded, 0 failed, {len(released)} given back, 0 lost"
    assert jobs.row(running)["status"] == "success"
    rows = jobs.all()
    assert {(rows[pk]["status"], rows[pk]["attempt_count"]) for pk in behind} == {("queued", 0)}


def _with_status(jobs: Rows, status: str) -> int:
    return sum(row["status"] == status for row in jobs.all().values())


def test_an_idle_worker_exits_soon(work: Start, jobs: Rows, sql: Sql) -> None:
    worker = work()
    listening = "query LIKE 'LISTEN %' AND datname = current_database()"
    until(lambda: sql(f"SELECT 1 FROM pg_stat_activity WHERE {listening}"), PATIENCE_SEC)
    assert worker.terminate(PATIENCE_SEC) == 0


def test_of_a_worker_killed_in_the_middle_no_job_is_lost_and_no_effect_doubled(
    work: Start, jobs: Rows, ledger: Callable[[], list[dict[str, Any]]]
) -> None:
    enqueue_many([{}] * 300, type="ledger")
    killed = work("--batch", "50")
    until(lambda: len(ledger()) > 20, PATIENCE_SEC)
    killed.kill()
    work()
    work("--concurrency", "2")
    until(lambda: (reap([Job]), statuses(jobs))[1] == {"success"}, timeout_sec=PATIENCE_SEC)
    effects = ledger()
    assert len(effects) == 300
    assert {effect["count"] for effect in effects} == {1}


def test_two_workers_share_the_work_and_run_each_job_once(
    work: Start, jobs: Rows, ledger: Callable[[], list[dict[str, Any]]], sql: Sql
) -> None:
    enqueue_many([{}] * 400, type="ledger")
    workers = [work("--once", "--batch", "20") for _ in range(2)]
    assert [worker.process.wait(PATIENCE_SEC) for worker in workers] == [0, 0]
    assert len(ledger()) == 400
    finished = sql(
        "SELECT count(*), count(DISTINCT job_id) AS jobs FROM job_events"
        " WHERE type = 'job:finished'"
    )
    assert finished == [{"count": 400, "jobs": 400}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--type", "nobodys"], "there is no handler for nobodys"),
        (["--concurrency", "0"], "it must be at least 1"),
        (["--poll", "0"], "it must be more than 0"),
        (["--batch", "many"], "is no whole number"),
    ],
)
def test_bad_usage_is_said_and_exits_with_2(options: list[str], said: str, work: Start) -> None:
    worker = work(*options)
    assert worker.process.wait(PATIENCE_SEC) == 2
    assert said in worker.log
