"""A scrape of a large table is a few index reads."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from jobreaper.metrics import readings
from jobreaper.tables import table_of
from project.media.models import Job

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

FINISHED, QUEUED, SCHEDULED, RUNNING = 300_000, 3_000, 20_000, 500

FILLING = f"""
INSERT INTO jobs (status, stage, finished_at)
SELECT CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'success' END, 'clip', now()
  FROM generate_series(1, {FINISHED}) AS n;
INSERT INTO jobs (stage, next_earliest_run_at, created_at)
SELECT 'clip', CASE WHEN n % 2 = 0 THEN now() - n * interval '1 s' END, now() - interval '1 day'
  FROM generate_series(1, {QUEUED}) AS n;
INSERT INTO jobs (stage, next_earliest_run_at)
SELECT 'clip', now() + n * interval '1 h' FROM generate_series(1, {SCHEDULED}) AS n;
INSERT INTO jobs (status, stage, lease_expires_at, last_heartbeat_at)
SELECT 'processing', 'clip', now() + interval '1 h', now() FROM generate_series(1, {RUNNING});
"""

INDEXES = {"idx_jobs_queued_due", "idx_jobs_status_lease"}

OF_TOTALS = {
    "jobreaper_totals",
    "jobreaper_stages",
    "jobreaper_refused_rows",
    "jobreaper_workers",
} | {"pg_database"}
INDEXES_OF_TOTALS = {
    "uniq_jobreaper_stages",
    "uniq_jobreaper_places",
    "uniq_jobreaper_refused_rows",
}

# Of 8 kB. The table has some 5,000, of which the unfinished rows take 400.
MOST_BLOCKS = 900


@pytest.fixture(scope="module", params=["never analysed", "analysed"])
def large_table(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobs SET (autovacuum_enabled = off)")
        cursor.execute(FILLING)
        if request.param == "analysed":
            cursor.execute("VACUUM (ANALYZE) jobs")
    with django_db_blocker.unblock():
        yield
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobs RESTART IDENTITY")
        cursor.execute("ALTER TABLE jobs RESET (autovacuum_enabled)")


def scrape() -> CaptureQueriesContext:
    """Read `jobs` as a scrape does, and return what was sent."""
    with CaptureQueriesContext(connection) as captured:
        reading = readings.read(connection, [table_of(Job)])
    assert reading.errors == []
    standing = reading.standings["jobs"]
    assert standing.queued == QUEUED + SCHEDULED
    assert sum(standing.leases.values()) == RUNNING
    assert standing.oldest_due_sec is not None
    assert standing.oldest_due_sec >= 24 * 3600
    return captured


def plans(captured: CaptureQueriesContext) -> list[dict[str, Any]]:
    """Return the plan of each statement, beside those that set timeouts, as it runs now."""
    sent = [str(query["sql"]).split(";\n") for query in captured.captured_queries]
    found = []
    for sql in itertools.chain(*sent):
        if sql.startswith(("SELECT", "WITH")) and "set_config" not in sql:
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
                [(text,)] = cursor.fetchall()
            found.append((json.loads(text) if isinstance(text, str) else text)[0]["Plan"])
    return found


def blocks_read(plan: dict[str, Any]) -> int:
    """Return how many blocks of 8 kB a statement looked at."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def test_it_reads_the_partial_indexes_and_nothing_finished(large_table: None) -> None:
    found = plans(scrape())
    assert len(found) == 4, "one statement each for totals, refused rows, workers and the table"
    used = set()
    for node in itertools.chain(*map(nodes, found)):
        used |= {node["Index Name"]} if "Index Name" in node else set()
        if node["Node Type"].endswith("Seq Scan"):
            assert node["Relation Name"] in OF_TOTALS, node
    assert used - INDEXES_OF_TOTALS == INDEXES
    assert sum(map(blocks_read, found)) <= MOST_BLOCKS
