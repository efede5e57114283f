"""A connection that is cut is no evidence of death."""

import time

import pytest
from django.db import connection

from jobreaper.presence.watcher import look, take_back_from_gone
from tests.committed import cut_sessions
from tests.processes.conftest import ReadRow, Start
from tests.rows import Sql
from tests.waiting import until

pytestmark = pytest.mark.process


def test_a_worker_that_loses_all_its_connections_again_and_again_keeps_its_job(
    start_worker: Start, job: int, row: ReadRow, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESENCE_GRACE_SEC", "2")
    worker = start_worker()
    worker.ask("claim", job)
    assert until(lambda: len(sql("TABLE jobreaper_workers")) == 1)
    cut = 0
    for _ in range(25):
        cut += cut_sessions(sql)
        for _ in range(4):
            assert take_back_from_gone(connection) == 0
            time.sleep(0.1)
    assert cut >= 5
    assert until(lambda: look(connection)[1] == [])
    assert worker.ask("finish") == "finished"
    assert row(job)["status"] == "success"


def test_the_sessions_of_a_worker_hold_its_lock_each(
    start_worker: Start, job: int, sql: Sql
) -> None:
    """Of the claim as well as of the heartbeat: one of them that is cut is no evidence."""
    held = """
        SELECT count(DISTINCT pid) AS sessions FROM pg_locks
         WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    """
    worker = start_worker()
    worker.ask("claim", job)
    assert until(lambda: sql(held)[0]["sessions"] == 2)
    assert worker.ask("finish") == "finished"
