"""PostgreSQL restarts under working workers, on a server that belongs to the test."""

import json
import time

import psycopg
import pytest

from jobreaper.states import EventType
from project.embedded import Postgres
from tests.processes.conftest import LEASE_SEC, Start
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_after_a_restart_the_reaper_waits_until_the_workers_have_beaten_again(
    how: str, server: Postgres, start: Start, start_worker: Start
) -> None:
    """awx#11549: a restart of the database neither kills nor strands the running jobs."""
    where = {"DATABASE_URL": server.url, "RECOVERY_GRACE_SEC": "8"}
    assert start("manage.py", "migrate", **where).process.wait(60) == 0
    with psycopg.connect(server.url) as client:
        client.execute("CREATE TABLE ledger (job_id bigint, epoch bigint, worker text)")
        client.execute("INSERT INTO jobs (id) VALUES (1), (2)")
    workers = {1: start_worker(**where), 2: start_worker(**where)}
    for job, worker in workers.items():
        assert worker.ask("claim", job) == "claimed"
    reaper = start("manage.py", "reap", "--loop", "--format", "json", **where)

    def is_held() -> bool | None:
        """Whether the next pass is held; None where it could not reach the database."""
        result = json.loads(reaper.answer())
        assert (result["requeued"], result["failed"]) == (0, 0)
        return None if result["errors"] else bool(result["held"])

    assert is_held() is False

    server.stop(how)
    # Frozen, no worker can be about to beat when the reaper first looks.
    for worker in workers.values():
        worker.freeze()
    every_lease_ended_at = time.time() + LEASE_SEC
    until(lambda: time.time() > every_lease_ended_at)
    server.start()
    until(lambda: is_held() is True)
    for worker in workers.values():
        worker.thaw()
    until(lambda: is_held() is False)

    for worker in workers.values():
        if worker.ask("work_and_finish") == "OperationalError":
            assert worker.ask("work_and_finish") == "finished"
    with psycopg.connect(server.url) as client:
        events = client.execute("SELECT job_id, type FROM job_events ORDER BY job_id").fetchall()
        ledger = client.execute("SELECT job_id, epoch FROM ledger ORDER BY job_id").fetchall()
    assert events == [("1", EventType.JOB_FINISHED), ("2", EventType.JOB_FINISHED)]
    assert ledger == [(1, 1), (2, 1)]
    assert reaper.terminate() == 0
