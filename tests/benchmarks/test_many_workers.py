"""Two hundred worker processes that start at once, on a server with 300 connections."""

import os
import random
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import pytest
from django.db import connection, connections

from jobreaper import enqueue_many
from jobreaper.models import Job
from jobreaper.protocol import heartbeat
from jobreaper.protocol.batch import Run, claim_group, finish_group
from jobreaper.tables import table_of
from tests.benchmarks.conftest import Report
from tests.rows import Sql

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(1800),
    pytest.mark.django_db(transaction=True),
]

WORKERS = int(os.environ.get("JOBREAPER_BENCH_WORKERS", "200"))
LEASES_A_WORKER = 10
# How long a job takes on average: 200 workers claim and finish a hundred a second.
WORK_SEC = 2.0


def work(start: Any, held: Any, answers: Any) -> None:
    """Claim ten jobs as fast as possible, hold them until everybody does, beat once and finish.
    Then run jobs one by one until the line is empty.
    """
    connections.close_all()
    # Heartbeats on the one connection of this process: 200 workers need 200.
    heartbeat.heart.add = lambda *holdings: None  # type: ignore[method-assign]
    table = table_of(Job)

    def timed(call: Callable[[], Any], into: list[float]) -> Any:
        began = time.perf_counter()
        found = call()
        into.append((time.perf_counter() - began) * 1000)
        return found

    def claim() -> list[Run]:
        return claim_group(table, 1, types=["noop"])

    burst: list[float] = []
    steady: list[float] = []
    beat: list[float] = []
    connection.ensure_connection()
    start.wait()
    began = time.perf_counter()
    runs = [run for _ in range(LEASES_A_WORKER) for run in timed(claim, burst)]
    held_sec = time.perf_counter() - began
    held.wait()
    timed(lambda: heartbeat.beat(connection, table, [run.holding for run in runs]), beat)
    finish_group(runs)
    done = 0
    time.sleep(random.uniform(0, 2 * WORK_SEC))
    while runs := timed(claim, steady):
        time.sleep(random.uniform(0.5, 1.5) * WORK_SEC)
        finish_group(runs)
        done += len(runs)
    answers.put((done, held_sec, burst, steady, beat))
    connections.close_all()


def test_two_hundred_workers_start_at_once(sql: Sql, report: Report) -> None:
    sql("TRUNCATE jobreaper_jobs, job_events")
    jobs = 2 * WORKERS * LEASES_A_WORKER
    enqueue_many(({} for _ in range(jobs)), type="noop")
    sql("VACUUM ANALYZE jobreaper_jobs")
    connections.close_all()
    fork = get_context("fork")
    # Only now does anything start that has threads.
    start, held, answers = fork.Barrier(WORKERS), fork.Barrier(WORKERS), fork.Queue()
    workers = [fork.Process(target=work, args=(start, held, answers)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    found = [answers.get(timeout=900) for _ in workers]
    for worker in workers:
        worker.join()
    done, held_sec, burst, steady, beats = zip(*found, strict=True)
    assert sum(done) == jobs - WORKERS * LEASES_A_WORKER
    rows: list[tuple[object, ...]] = [("", "times", "median ms", "p99 ms", "longest ms")]
    for name, of_each in (
        ("claims, all workers at once", burst),
        ("a beat of ten leases, all at once", beats),
        ("claims, 100 a second", steady),
    ):
        took = sorted(ms for each in of_each for ms in each)
        figures = (statistics.median(took), took[len(took) * 99 // 100], took[-1])
        rows.append((name, f"{len(took):,}", *(f"{ms:.1f}" for ms in figures)))
    report(f"{WORKERS} workers, {WORKERS * LEASES_A_WORKER:,} leases at once", rows)
    print(f"all leases held after {max(held_sec):.1f} s; {min(done)} to {max(done)} jobs a worker")
