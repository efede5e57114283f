"""Whether memory stays as it is: of a worker, of ``enqueue_many()``, of a prune."""

import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import connection

from jobreaper import claim_next, enqueue_many
from jobreaper.control.retention import prune
from jobreaper.models import Job
from tests.benchmarks.conftest import Report
from tests.benchmarks.costs import measured
from tests.rows import Sql
from tests.waiting import until

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(7200),
    pytest.mark.django_db(transaction=True),
]

ROOT = Path(__file__).resolve().parents[2]
JOBS = int(os.environ.get("JOBREAPER_BENCH_JOBS", "100000"))
ROWS = int(os.environ.get("JOBREAPER_BENCH_ROWS", "500000"))
STEPS = 10

OLD_EVENTS = """
INSERT INTO job_events (job_id, data, at)
SELECT n::text, '{"type": "job:finished", "table": "jobreaper_jobs", "details": {}}',
       now() - interval '40 days'
  FROM generate_series(1, %s) AS n
"""


def rss_mb(process: psutil.Process | None = None) -> float:
    return float((process or psutil.Process()).memory_info().rss) / 1e6


def test_enqueue_many(sql: Sql, report: Report) -> None:
    sql("TRUNCATE jobreaper_jobs, job_events")
    seen: list[tuple[object, ...]] = [("jobs so far", "RSS, MB"), (0, f"{rss_mb():.0f}")]

    def progress(made: int) -> None:
        if made * STEPS // JOBS >= len(seen) - 1:
            seen.append((f"{made:,}", f"{rss_mb():.0f}"))

    enqueue_many(({"payload": {"n": n}} for n in range(JOBS)), type="noop", progress=progress)
    report(f"enqueue_many of {JOBS:,} jobs", seen)


def test_a_worker(sql: Sql, database_url: str, tmp_path: Path, report: Report) -> None:
    """Of no-op jobs, in ten parts, from one process."""
    sql("TRUNCATE jobreaper_jobs, job_events")
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.queue.settings",
        "DATABASE_URL": database_url,
    }
    rows: list[tuple[object, ...]] = [("jobs run", "RSS, MB")]
    with open(tmp_path / "log", "wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "manage.py", "work", "--no-housekeeping"],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        for step in range(1, STEPS + 1):
            enqueue_many(({} for _ in range(JOBS // STEPS)), type="noop")
            until(lambda: not Job.objects.exclude(status="success").exists(), 3600, every_sec=1)
            rows.append((f"{JOBS // STEPS * step:,}", f"{rss_mb(psutil.Process(worker.pid)):.1f}"))
            sql("TRUNCATE jobreaper_jobs, job_events")
    finally:
        worker.terminate()
        worker.wait(60)
    report(f"A worker that runs {JOBS:,} jobs", rows)


def test_a_prune(sql: Sql, report: Report) -> None:
    """And what a claim costs meanwhile."""
    sql("TRUNCATE jobreaper_jobs, job_events")
    sql(OLD_EVENTS, ROWS)
    enqueue_many(({} for _ in range(2_000)), type="noop")
    sql("VACUUM ANALYZE job_events")

    def claims() -> str:
        cost = measured(lambda: None, lambda _: claim_next(Job), 20)
        return f"{statistics.median(cost.server_ms):.2f}" if cost.server_ms else "?"

    rows: list[tuple[Any, ...]] = [
        ("rows deleted", "RSS, MB", "a claim, ms of the server's processor"),
        (0, f"{rss_mb():.1f}", claims()),
    ]

    def progress(table: str, deleted: int) -> None:
        if deleted * STEPS // ROWS >= len(rows) - 1:
            rows.append((f"{deleted:,}", f"{rss_mb():.1f}", claims()))

    result = prune(progress=progress)
    assert result.deleted["job_events"] == ROWS, result
    assert connection.connection is not None
    report(f"A prune of {ROWS:,} events", rows)
