"""Two hundred worker processes that start at once, on a server of this machine that has 300
connections, as the embedded one does.

So many processes wait for a processor most of the time. That is told apart from what a claim itself
takes, and from what it waits for locks and the disk.
"""

import os
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from queue import Empty
from typing import Any

import pytest
from django.db import connection, connections

from jobreaper import enqueue_many
from jobreaper.models import Job
from jobreaper.protocol import heartbeat
from jobreaper.protocol.batch import finish_group
from jobreaper.queue.intake import Intake
from jobreaper.tables import table_of
from tests.benchmarks.conftest import Report
from tests.benchmarks.costs import Spent, share, spent
from tests.rows import Sql

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(1800),
    pytest.mark.django_db(transaction=True),
]

WORKERS = int(os.environ.get("JOBREAPER_BENCH_WORKERS", "200"))
LEASES_A_WORKER = 10
# Connections of this process, and those that the server keeps for itself.
OTHERS = 20
# How long a job takes on average: 200 workers claim and finish a hundred a second.
WORK_SEC = 2.0

HEADINGS: tuple[object, ...] = (
    *("", "times", "median", "p99", "p99 without a processor's queue"),
    *("mean: client", "server", "a processor's queue", "locks and disk"),
)


def work(together: Any, answers: Any) -> None:
    """Claim ten jobs as fast as possible, hold them until everybody does, beat once and finish.
    When all have finished, run jobs one by one until the line is empty.
    """
    connections.close_all()
    # Heartbeats on the one connection of this process: 200 workers need 200.
    heartbeat.heart.add = lambda *holdings: None  # type: ignore[method-assign]
    table = table_of(Job)
    # As ``manage.py work`` claims.
    intake = Intake(table, types=["noop"], stages=None, concurrency=1, batch=1, poll_sec=1)
    burst: list[Spent] = []
    steady: list[Spent] = []
    beat: list[Spent] = []
    connection.ensure_connection()
    together.wait()
    began = time.perf_counter()
    runs = [run for _ in range(LEASES_A_WORKER) for run in spent(lambda: intake.claim(0), burst)]
    held_at = time.perf_counter()
    together.wait()
    spent(lambda: heartbeat.beat(connection, table, [run.holding for run in runs]), beat)
    finish_group(runs)
    together.wait()
    done = 0
    time.sleep(random.uniform(0, 2 * WORK_SEC))
    while runs := spent(lambda: intake.claim(0), steady):
        time.sleep(random.uniform(0.5, 1.5) * WORK_SEC)
        finish_group(runs)
        done += len(runs)
    answers.put((done, began, held_at, burst, steady, beat))
    connections.close_all()


def row(name: str, took: Sequence[Spent]) -> tuple[object, ...]:
    parts = [(each.client, each.server, each.waiting, each.rest) for each in took]
    figures = (
        statistics.median(each.clock for each in took),
        share([each.clock for each in took], 0.99),
        share([each.clock - each.waiting for each in took], 0.99),
        *map(statistics.fmean, zip(*parts, strict=True)),
    )
    return (name, f"{len(took):,}", *(f"{ms:.1f}" for ms in figures))


def test_two_hundred_workers_start_at_once(sql: Sql, report: Report) -> None:
    [allowed] = sql("SELECT current_setting('max_connections')::int AS connections")
    if allowed["connections"] < WORKERS + OTHERS:
        pytest.skip(f"the server's max_connections is less than {WORKERS + OTHERS}")
    sql("TRUNCATE jobreaper_jobs, job_events")
    jobs = 2 * WORKERS * LEASES_A_WORKER
    enqueue_many(({} for _ in range(jobs)), type="noop")
    sql("VACUUM ANALYZE jobreaper_jobs")
    connections.close_all()
    fork = get_context("fork")
    # Only now does anything start that has threads.
    together, answers = fork.Barrier(WORKERS, timeout=120), fork.Queue()
    workers = [fork.Process(target=work, args=(together, answers)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    found: list[Any] = []
    try:
        while len(found) < WORKERS:
            with suppress(Empty):
                found.append(answers.get(timeout=5))
            assert not any(worker.exitcode for worker in workers)
    finally:
        for worker in workers:
            if len(found) < WORKERS:
                worker.kill()
            worker.join()
    done, began, held_at, burst, steady, beats = zip(*found, strict=True)
    assert sum(done) == jobs - WORKERS * LEASES_A_WORKER
    rows: list[tuple[object, ...]] = [HEADINGS]
    for name, took in (
        ("the first claim of each, all at once", [of_one[0] for of_one in burst]),
        ("nine more, all at once", [each for of_one in burst for each in of_one[1:]]),
        ("a beat of ten leases, all at once", [each for of_one in beats for each in of_one]),
        ("claims, 100 a second", [each for of_one in steady for each in of_one[:-1]]),
        ("claims that find nothing", [of_one[-1] for of_one in steady]),
    ):
        rows.append(row(name, took))
    report(f"{WORKERS} workers, {WORKERS * LEASES_A_WORKER:,} leases at once, ms", rows)
    print(f"all leases held after {max(held_at) - min(began):.1f} s")
    print(f"{min(done)} to {max(done)} jobs a worker; load average {os.getloadavg()[0]:.0f}")
