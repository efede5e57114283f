"""Two hundred worker processes that start at once, on a server with 300 connections."""

import os
import statistics
import time
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
# How long a job takes, so that the workers do not keep in step by chance.
WORK_SEC = 0.2


def work(number: int, start: Any, held: Any, answers: Any) -> None:
    """Claim ten jobs one by one, hold them until everybody does, beat once, finish, and claim on
    until the line is empty.
    """
    connections.close_all()
    # Heartbeats on the one connection of this process: 200 workers need 200.
    heartbeat.heart.add = lambda *holdings: None  # type: ignore[method-assign]
    table = table_of(Job)
    took: list[float] = []
    cpu: list[float] = []

    def claim() -> list[Run]:
        began, used = time.perf_counter(), time.thread_time()
        runs = claim_group(table, 1, types=["noop"])
        took.append((time.perf_counter() - began) * 1000)
        cpu.append((time.thread_time() - used) * 1000)
        return runs

    connection.ensure_connection()
    start.wait()
    runs = [run for _ in range(LEASES_A_WORKER) for run in claim()]
    held.wait()
    began = time.perf_counter()
    heartbeat.beat(connection, table, [run.holding for run in runs])
    beat_ms = (time.perf_counter() - began) * 1000
    finish_group(runs)
    done = len(runs)
    while runs := claim():
        time.sleep(WORK_SEC)
        finish_group(runs)
        done += len(runs)
    answers.put((number, done, took, cpu, beat_ms))
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
    workers = [
        fork.Process(target=work, args=(number, start, held, answers)) for number in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    found = [answers.get(timeout=900) for _ in workers]
    for worker in workers:
        worker.join()
    done = [each[1] for each in found]
    assert sum(done) == jobs
    took = sorted(ms for each in found for ms in each[2])
    rows = [
        ("claims", "median ms", "p99 ms", "longest ms", "jobs a worker", "a beat of 10, median ms"),
        (
            f"{len(took):,}",
            f"{statistics.median(took):.1f}",
            f"{took[len(took) * 99 // 100]:.1f}",
            f"{took[-1]:.1f}",
            f"{min(done)} to {max(done)}",
            f"{statistics.median(each[4] for each in found):.1f}",
        ),
    ]
    report(f"{WORKERS} workers, {WORKERS * LEASES_A_WORKER:,} leases at once, {jobs:,} jobs", rows)
