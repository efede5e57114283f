"""Servers of the tests' own restart, crash and fail over under working workers."""

import json
import os
import signal
import time
from pathlib import Path

import psycopg
import pytest

from jobreaper.states import EventType
from project.embedded import Postgres
from tests.processes.children import Child
from tests.processes.conftest import LEASE_SEC, Start
from tests.waiting import until

GRACE_SEC = 6

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.usefixtures("transactional_db")]


class Scene:
    """Two workers with a job each, and a reaper."""

    def __init__(self, server: Postgres, start: Start, start_worker: Start) -> None:
        self.url = server.url
        where = {"DATABASE_URL": self.url, "RECOVERY_GRACE_SEC": str(GRACE_SEC)}
        assert start("manage.py", "migrate", **where).process.wait(60) == 0
        with psycopg.connect(self.url) as client:
            client.execute("CREATE TABLE ledger (job_id bigint, epoch bigint, worker text)")
            client.execute("INSERT INTO jobs (id) VALUES (1), (2)")
        self.workers = [start_worker(**where), start_worker(**where)]
        for job, worker in enumerate(self.workers, 1):
            assert worker.ask("claim", job) == "claimed"
        self.reaper: Child = start("manage.py", "reap", "--loop", "--format", "json", **where)
        assert self.is_held() is False

    def is_held(self) -> bool | None:
        """Whether the next pass is held; None where it could not reach the database."""
        result = json.loads(self.reaper.answer())
        assert (result["requeued"], result["failed"]) == (0, 0)
        return None if result["errors"] else bool(result["held"])

    def freeze_until_the_leases_have_ended(self) -> None:
        """Freeze the workers, so that none is about to beat when the reaper looks again."""
        for worker in self.workers:
            worker.freeze()
        every_lease_ended_at = time.time() + LEASE_SEC
        until(lambda: time.time() > every_lease_ended_at)

    def the_reaper_waits_until_the_workers_have_beaten_again(self) -> None:
        until(lambda: self.is_held() is True)
        for worker in self.workers:
            worker.thaw()
        until(lambda: self.is_held() is False)
        for worker in self.workers:
            if worker.ask("work_and_finish") == "OperationalError":
                assert worker.ask("work_and_finish") == "finished"
        with psycopg.connect(self.url) as client:
            events = client.execute("SELECT job_id, type FROM job_events ORDER BY job_id")
            assert events.fetchall() == [
                ("1", EventType.JOB_FINISHED),
                ("2", EventType.JOB_FINISHED),
            ]
            ledger = client.execute("SELECT job_id, epoch FROM ledger ORDER BY job_id")
            assert ledger.fetchall() == [(1, 1), (2, 1)]
        assert self.reaper.terminate() == 0


@pytest.fixture
def scene(server: Postgres, start: Start, start_worker: Start) -> Scene:
    return Scene(server, start, start_worker)


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_after_a_restart_the_reaper_waits_until_the_workers_have_beaten_again(
    how: str, server: Postgres, scene: Scene
) -> None:
    """awx#11549: a restart of the database neither kills nor strands the running jobs."""
    server.stop(how)
    scene.freeze_until_the_leases_have_ended()
    server.start()
    scene.the_reaper_waits_until_the_workers_have_beaten_again()


def test_after_a_crash_of_one_session_the_reaper_waits_as_well(
    server: Postgres, scene: Scene
) -> None:
    scene.reaper.freeze()
    scene.freeze_until_the_leases_have_ended()
    # The server ends every session and recovers; its first process, which has a start, stays.
    with psycopg.connect(server.url) as client:
        os.kill(client.info.backend_pid, signal.SIGKILL)
    until(lambda: server.log.read_text().count("ready to accept connections") == 2)
    scene.reaper.thaw()
    scene.the_reaper_waits_until_the_workers_have_beaten_again()


@pytest.mark.parametrize("restarts", [False, True])
def test_after_a_failover_the_reaper_waits_as_well(
    restarts: bool, server: Postgres, scene: Scene, open_path: Path
) -> None:
    home, sockets = open_path / "standby", open_path / "s"
    home.mkdir()
    sockets.mkdir()
    standby = Postgres(home, sockets)
    standby.run("pg_basebackup", "-d", server.url, "-R", "-c", "fast")
    standby.start()
    try:
        if not restarts:
            sleep_for_the_grace()
        scene.reaper.freeze()
        scene.freeze_until_the_leases_have_ended()
        caught_up = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = sent_lsn"
        with psycopg.connect(server.url) as client:
            until(lambda: client.execute(caught_up).fetchone() == (1,))
        server.stop("immediate")
        if restarts:  # while there is no primary
            standby.start()
            sleep_for_the_grace()
        server.sockets.rename(open_path / "gone")
        # Whoever connects to the one that is gone gets the other, as behind an address that moves.
        server.sockets.symlink_to(standby.sockets)
        standby.run("pg_ctl", "promote")
        scene.reaper.thaw()
        scene.the_reaper_waits_until_the_workers_have_beaten_again()
    finally:
        standby.stop("immediate")


def sleep_for_the_grace() -> None:
    """Wait until a server that starts now has been up for longer than a pass is held."""
    is_over_at = time.time() + GRACE_SEC
    until(lambda: time.time() > is_over_at)
