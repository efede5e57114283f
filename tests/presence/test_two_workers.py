"""Of two `manage.py work` with their usual settings, the one that lives takes over at once."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobreaper import enqueue
from tests.committed import cut_sessions
from tests.processes.children import Child
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


@pytest.fixture
def pair(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Child]]:
    for name in ("DEFAULT_LEASE_SEC", "HEARTBEAT_SEC", "PRESENCE_GRACE_SEC"):
        monkeypatch.delenv(name, raising=False)
    environment = {"DJANGO_SETTINGS_MODULE": "tests.queue.settings", "DATABASE_URL": database_url}
    workers = [
        Child(["manage.py", "work"], environment, tmp_path / f"work-{n}.log") for n in range(2)
    ]
    yield workers
    for worker in workers:
        worker.end()


def test_a_killed_workers_job_runs_on_another_within_seconds(pair: list[Child], sql: Sql) -> None:
    jobs = Rows(sql, "jobreaper_jobs")
    assert until(lambda: len(sql("TABLE jobreaper_workers")) == 2)
    key = enqueue("until-told").pk
    assert until(lambda: jobs.row(key)["status"] == "processing")
    pid = int(jobs.row(key)["locked_by"].split(":")[1])
    [killed] = [worker for worker in pair if worker.pid == pid]
    [other] = [worker for worker in pair if worker.pid != pid]
    os.kill(killed.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    assert other.answer() == f"began {key}"
    print(f"took {time.monotonic() - killed_at:.2f} s")
    assert jobs.event_types(key) == ["job:enqueued", "job:worker_lost"]


def test_a_worker_that_is_told_to_stop_leaves_no_trace(pair: list[Child], sql: Sql) -> None:
    assert until(lambda: len(sql("TABLE jobreaper_workers")) == 2)
    pair[0].process.send_signal(signal.SIGTERM)
    assert pair[0].process.wait(60) == 0
    [row] = sql("TABLE jobreaper_workers")
    assert row["pid"] == pair[1].pid


def test_a_worker_that_is_killed_while_it_stops_costs_its_job_no_attempt(
    pair: list[Child], sql: Sql
) -> None:
    jobs = Rows(sql, "jobreaper_jobs")
    assert until(lambda: len(sql("TABLE jobreaper_workers")) == 2)
    key = enqueue("until-told", max_attempts=1).pk
    pid = until(lambda: next((w.pid for w in pair if f"began {key}" in w.lines_so_far()), None))
    os.kill(pid, signal.SIGTERM)
    stopping = "SELECT 1 FROM jobreaper_workers WHERE pid = %s AND stopping_at IS NOT NULL"
    until(lambda: bool(sql(stopping, pid)))
    os.kill(pid, signal.SIGKILL)
    [other] = [worker for worker in pair if worker.pid != pid]
    until(lambda: f"began {key}" in other.lines_so_far(), 60)
    assert jobs.row(key)["attempt_count"] == 1
    [lost] = [event for event in jobs.events(key) if event["type"] == "job:worker_lost"]
    assert lost["details"]["reason"] == "worker_stopped"
    assert lost["details"]["how"].startswith("it was told to stop, and its sessions ended")
    other.say("end")
    until(lambda: jobs.row(key)["status"] == "success")


def test_a_watcher_that_stands_still_is_stood_in_for(pair: list[Child], sql: Sql) -> None:
    """One of the two looks; whichever is frozen, the other one misses a third that was killed."""
    jobs = Rows(sql, "jobreaper_jobs")
    assert until(lambda: len(sql("TABLE jobreaper_workers")) == 2)
    for still in pair:
        os.kill(still.pid, signal.SIGSTOP)
        try:
            key = jobs.plant_running(locked_by=f"gone:{still.pid}:1")
            sql(
                "INSERT INTO jobreaper_workers (worker, kind, host, pid, version)"
                " VALUES (%s, 'hold', 'gone', 1, '0')",
                f"gone:{still.pid}:1",
            )
            until(lambda key=key: jobs.event_types(key) == ["job:worker_lost"])  # type: ignore[misc]
        finally:
            os.kill(still.pid, signal.SIGCONT)


@pytest.mark.parametrize("harm", ["freeze", "cut"])
def test_what_is_no_death_costs_no_job(pair: list[Child], sql: Sql, harm: str) -> None:
    jobs = Rows(sql, "jobreaper_jobs")
    key = enqueue("until-told").pk
    until(lambda: jobs.row(key)["status"] == "processing")
    until(lambda: len(sql("TABLE jobreaper_workers")) == 2)
    pid = int(jobs.row(key)["locked_by"].split(":")[1])
    [worker] = [worker for worker in pair if worker.pid == pid]
    # One that has not begun is given back if it waits for long.
    assert worker.answer() == f"began {key}"
    if harm == "freeze":
        worker.freeze()
    else:
        assert cut_sessions(sql) >= 4
    # The other one watches as well.
    ends_at = time.monotonic() + 4
    while time.monotonic() < ends_at:
        assert jobs.row(key)["lease_epoch"] == 1
        time.sleep(0.1)
    worker.thaw()
    worker.say("end")
    until(lambda: jobs.row(key)["status"] == "success")
    assert jobs.event_types(key) == ["job:enqueued", "job:finished"]
