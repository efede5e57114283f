"""What every test of the queue has at hand."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings

from jobreaper import job_handler
from jobreaper.queue import unhandled
from jobreaper.queue.handlers import _handlers
from jobreaper.queue.worker import Worker
from tests.committed import foreign_client, sql, transactional_db
from tests.queue.processes import ledger, work
from tests.queue.working import Gate, idle
from tests.races.rivals import Rivals
from tests.rows import Rows, Sql

__all__ = ["foreign_client", "ledger", "sql", "transactional_db", "work"]


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The ready-made table, seen by a foreign client."""
    return Rows(sql, "jobreaper_jobs")


@pytest.fixture
def rivals(sql: Sql) -> Iterator[Rivals]:
    """Calls that run in threads and connections of their own."""
    with Rivals(sql) as rivals:
        yield rivals


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """Handlers that a test declares are gone after it; retries are due at once."""
    before = dict(_handlers)
    job_handler("idle")(idle)
    # What is said once is said in this test.
    unhandled._reported.clear()
    unhandled._reported_as_hidden.clear()
    with override_settings(
        JOBREAPER={"JOB_RETRY_BACKOFF_MS_BASE": 1, "JOB_RETRY_BACKOFF_MS_MAX": 1}
    ):
        yield
    _handlers.clear()
    _handlers.update(before)


@pytest.fixture
def working() -> Any:
    """Start a worker in a thread; it is told to stop, and ends, when the test does."""
    started: list[tuple[Worker, threading.Thread]] = []

    def run(worker: Worker) -> None:
        try:
            worker.run()
        finally:
            connections.close_all()

    def start(**options: Any) -> Worker:
        worker = Worker(**{"poll_sec": 0.05, **options})
        thread = threading.Thread(target=run, args=[worker])
        thread.start()
        started.append((worker, thread))
        return worker

    yield start
    for worker, thread in started:
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def gate(working: Any) -> Any:
    gate = Gate()
    job_handler("gate")(gate)
    yield gate
    gate.open.set()
