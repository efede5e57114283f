"""What a scrape costs: it must not grow with the jobs that are done."""

import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobreaper.metrics import readings
from jobreaper.tables import table_of
from project.media.models import Job
from tests.benchmarks.conftest import Load, Report
from tests.metrics.test_cost import blocks_read, plans

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(900),
    pytest.mark.django_db(transaction=True),
]

QUEUED, RUNNING = 20_000, 2_000
SIZES = (100_000, 2_000_000)

WAITING = "INSERT INTO jobs (stage) SELECT 'clip' FROM generate_series(1, %s)"


def test_a_scrape_of_a_large_table(load: Load, report: Report) -> None:
    rows: list[tuple[str, ...]] = [("rows", "ms", "blocks of 8 kB read", "blocks of the table")]
    for size in SIZES:
        load(size - QUEUED, live=RUNNING)
        with connection.cursor() as cursor:
            cursor.execute(WAITING, [QUEUED])
            cursor.execute("VACUUM (ANALYZE) jobs")
            cursor.execute("SELECT pg_relation_size('jobs') / 8192")
            [(whole,)] = cursor.fetchall()
        times = []
        for _ in range(20):
            started = time.perf_counter()
            with CaptureQueriesContext(connection) as captured:
                reading = readings.read(connection, [table_of(Job)])
            times.append((time.perf_counter() - started) * 1000)
        assert reading.standings["jobs"].queued == QUEUED
        read = sum(map(blocks_read, plans(captured)))
        rows.append(
            (f"{size:,}", f"{sorted(times)[len(times) // 2]:.1f}", f"{read:,}", f"{whole:,}")
        )
    report(
        f"A scrape of one table, {QUEUED:,} jobs queued and {RUNNING:,} running; median of 20", rows
    )
