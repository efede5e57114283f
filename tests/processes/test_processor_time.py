"""A process of ours that waits costs next to nothing, whatever it waits for."""

import signal
import time
from typing import Any

import psutil
import psycopg
import pytest

from jobreaper import enqueue, enqueue_many
from jobreaper.control import pause
from jobreaper.models import Job
from tests.processes.children import Child
from tests.processes.conftest import Sql, Start
from tests.proxy import Proxy
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

MEASURED_SEC = 1.0
# A look for jobs, a beat or a try to connect takes some milliseconds, and there are a few a second:
# one to four hundredths of a core, more on a slow machine. A loop takes what it can get of a core,
# and so does the one in here.
MOST_SHARE = 0.25

PATIENCE_SEC = 60.0


def share_of_a_loop(*pids: int) -> float:
    """How much of a processor the processes take together, as a share of what a loop takes."""
    processes = [psutil.Process(pid) for pid in pids]

    def spent() -> float:
        times = [process.cpu_times() for process in processes]
        return float(sum(used.user + used.system for used in times))

    before, loop_before, ends_at = spent(), time.process_time(), time.monotonic() + MEASURED_SEC
    while time.monotonic() < ends_at:
        pass
    return (spent() - before) / (time.process_time() - loop_before)


def assert_costs_nothing(child: Child) -> None:
    family = psutil.Process(child.pid).children(recursive=True)
    pids = [child.pid, *(process.pid for process in family)]
    # What it did before may still be going on, so it has some time to come to rest.
    until(lambda: share_of_a_loop(*pids) < MOST_SHARE, PATIENCE_SEC)


@pytest.fixture
def work(start: Start) -> Start:
    """Start `manage.py work` with the handlers of tests/queue."""

    def run(*options: str, **environment: str) -> Child:
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.queue.settings",
            # A pass is work, and two a second are a lot of it.
            "REAPER_INTERVAL_SEC": "60",
            **environment,
        }
        return start("manage.py", "work", *options, **environment)

    return run


def listens(sql: Sql) -> bool:
    listening = "query LIKE 'LISTEN %' AND datname = current_database()"
    return bool(sql(f"SELECT 1 FROM pg_stat_activity WHERE {listening}"))


def began(worker: Child, pk: Any) -> None:
    assert worker.answer(PATIENCE_SEC) == f"began {pk}"


def test_an_idle_worker(work: Start, sql: Sql) -> None:
    worker = work("--concurrency", "4")
    until(lambda: listens(sql), PATIENCE_SEC)
    assert_costs_nothing(worker)


@pytest.mark.parametrize("options", [[], ["--concurrency", "4"], ["--no-listen", "--once"]])
def test_a_worker_with_a_job_that_waits(options: list[str], work: Start) -> None:
    """Full with one thread, and with room for others with four."""
    job = enqueue("until-told")
    worker = work(*options)
    began(worker, job.pk)
    assert_costs_nothing(worker)


def test_a_full_worker_with_more_jobs_in_line(work: Start, sql: Sql) -> None:
    # By the pace of the first ones the worker claims hundreds at once.
    enqueue_many([{}] * 100, type="noop")
    [running] = enqueue_many([{}], type="until-told").ids
    enqueue_many([{}] * 100, type="noop")
    worker = work()
    began(worker, running)
    assert_costs_nothing(worker)


def test_a_worker_whose_jobs_are_paused(work: Start, sql: Sql) -> None:
    pause("jobreaper_jobs")
    enqueue_many([{}] * 100, type="noop")
    worker = work()
    until(lambda: listens(sql), PATIENCE_SEC)
    assert_costs_nothing(worker)


def test_a_worker_that_drains(work: Start, sql: Sql) -> None:
    job = enqueue("until-told")
    worker = work("--concurrency", "2")
    began(worker, job.pk)
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: not listens(sql), PATIENCE_SEC)
    assert_costs_nothing(worker)


def test_a_worker_that_cannot_end_its_job_since_the_row_is_locked(work: Start, dsn: str) -> None:
    job = enqueue("until-told")
    # A heartbeat that finds the row locked is tried again after a tenth of the usual time.
    worker = work(DEFAULT_LEASE_SEC="60", HEARTBEAT_SEC="2")
    began(worker, job.pk)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM jobreaper_jobs FOR UPDATE")
        worker.say("go on")
        assert_costs_nothing(worker)


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_worker_whose_database_is_away(is_busy: bool, work: Start, proxy: Proxy) -> None:
    job = enqueue("until-told" if is_busy else "noop")
    worker = work("--concurrency", "2", DATABASE_URL=proxy.url)
    if is_busy:
        began(worker, job.pk)
    else:
        until(lambda: Job.objects.filter(pk=job.pk, status="success").exists(), PATIENCE_SEC)
    proxy.cut()
    assert_costs_nothing(worker)


def test_the_reapers_loop_between_two_passes(start: Start) -> None:
    reaper = start("manage.py", "reap", "--loop", REAPER_INTERVAL_SEC="60")
    assert reaper.answer(PATIENCE_SEC)
    assert_costs_nothing(reaper)


def test_a_process_that_holds_leases(start_worker: Start, job: int) -> None:
    worker = start_worker()
    assert worker.ask("claim", job)
    assert_costs_nothing(worker)
