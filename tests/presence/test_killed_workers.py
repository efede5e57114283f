"""A worker that is killed whole is noticed in seconds, whatever the length of its lease."""

import os
import signal

import pytest
from django.db import connection

from jobreaper.presence.watcher import look, take_back_from_gone
from tests.processes.conftest import ReadRow, Start
from tests.rows import Sql
from tests.waiting import until

pytestmark = pytest.mark.process


def workers(sql: Sql) -> list[dict[str, object]]:
    return sql("SELECT * FROM jobreaper_workers")


def test_a_killed_workers_job_is_taken_back_long_before_its_lease_ends(
    start_worker: Start, job: int, row: ReadRow, sql: Sql
) -> None:
    worker = start_worker()
    worker.ask("claim", job)
    assert until(lambda: len(workers(sql)) == 1)
    assert take_back_from_gone(connection) == 0
    os.kill(worker.pid, signal.SIGKILL)
    assert until(lambda: take_back_from_gone(connection) == 1)
    assert row(job)["status"] == "queued"
    [event] = sql("SELECT data FROM job_events WHERE type = 'job:worker_lost'")
    assert "sessions ended" in event["data"]["details"]["how"]
    [worker_row] = workers(sql)
    assert worker_row["gone_at"] is not None
    assert worker_row["taken"] == 1


def test_a_frozen_worker_keeps_its_job(
    start_worker: Start, job: int, row: ReadRow, sql: Sql
) -> None:
    worker = start_worker()
    worker.ask("claim", job)
    assert until(lambda: len(workers(sql)) == 1)
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        for _ in range(20):
            assert take_back_from_gone(connection) == 0
            assert look(connection)[1] == []
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    assert row(job)["status"] == "processing"


def test_a_process_that_it_forked_does_not_keep_a_killed_worker_here(
    start_worker: Start, job: int, row: ReadRow, sql: Sql
) -> None:
    """The fork has its sockets, and has let go of them."""
    worker = start_worker()
    worker.ask("claim", job)
    assert until(lambda: len(workers(sql)) == 1)
    fork = int(worker.ask("leave_a_fork"))
    os.kill(worker.pid, signal.SIGKILL)
    assert until(lambda: take_back_from_gone(connection) == 1)
    os.kill(fork, 0)
    assert row(job)["status"] == "queued"
