"""How fast the queue is, next to bare SQL on the same table in the same run."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from django.db import connection

from jobreaper import enqueue_many
from jobreaper.models import Job
from jobreaper.protocol.batch import claim_group, finish_group
from jobreaper.queue.runs import call
from jobreaper.queue.worker import DEFAULT_BATCH
from jobreaper.tables import table_of

pytestmark = [pytest.mark.bench, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
JOBS = 20_000
BATCH = 1_000

CLAIM = """
    UPDATE jobreaper_jobs
       SET status = 'processing', locked_by = 'reference', claimed_at = statement_timestamp(),
           lease_expires_at = statement_timestamp() + interval '5 minutes',
           attempt_count = attempt_count + 1, lease_epoch = lease_epoch + 1
     WHERE id = ANY (ARRAY(
           SELECT id FROM jobreaper_jobs WHERE status = 'queued'
            ORDER BY priority DESC, next_earliest_run_at, id LIMIT %s FOR UPDATE SKIP LOCKED))
    RETURNING id"""
FINISH = """
    UPDATE jobreaper_jobs
       SET status = 'success', locked_by = NULL, claimed_at = NULL, lease_expires_at = NULL,
           finished_at = statement_timestamp()
     WHERE id = ANY (%s)"""

Sql = Callable[..., list[dict[str, Any]]]


def report(what: str, seconds: float) -> None:
    print(f"\n{what:<40}{JOBS / seconds:>10,.0f} jobs/s", end="")


def enqueue_all(sql: Sql) -> float:
    """Enqueue the jobs on clean tables; return the seconds that took."""
    sql("TRUNCATE jobreaper_jobs, job_events")
    started = time.perf_counter()
    assert enqueue_many(({"payload": {"n": n}} for n in range(JOBS)), type="noop").made == JOBS
    seconds = time.perf_counter() - started
    sql("VACUUM ANALYZE jobreaper_jobs")
    return seconds


def test_enqueue_many(sql: Sql) -> None:
    report("enqueue_many", enqueue_all(sql))


def test_bare_sql(sql: Sql, dsn: str) -> None:
    """Claims and finishes and nothing else: no events, no heartbeats, no handlers."""
    enqueue_all(sql)
    started = time.perf_counter()
    with psycopg.connect(dsn, autocommit=True) as client:
        while ids := [pk for (pk,) in client.execute(CLAIM, [BATCH])]:
            client.execute(FINISH, [ids])
    report(f"bare SQL, batches of {BATCH:,}", time.perf_counter() - started)


def test_processor_time_of_a_job(sql: Sql) -> None:
    """Of one process and of its server's session on this machine, from the claim to the finish: a
    machine that is busy with other things changes it less than it does the pace.
    """
    enqueue_all(sql)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [[pid]] = cursor.fetchall()
    python, server = psutil.Process(), psutil.Process(pid)
    before = [spent_sec(python), spent_sec(server)]
    while runs := claim_group(table_of(Job), DEFAULT_BATCH, types=["noop"]):
        for run in runs:
            run.error = call(lambda job, lease: None, run.lease)
        assert finish_group(runs).ended == runs
    spent = [spent_sec(python) - before[0], spent_sec(server) - before[1]]
    for whose, seconds in zip(("worker", "server"), spent, strict=True):
        print(f"\nprocessor time of the {whose:<19}{seconds / JOBS * 1e6:>10.0f} µs a job", end="")


def spent_sec(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@pytest.mark.parametrize("processes", [1, 2])
def test_drain(processes: int, sql: Sql, database_url: str, tmp_path: Path) -> None:
    """From the first claim to the last finish, with the workers' own log."""
    enqueue_all(sql)
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.queue.settings",
        "DATABASE_URL": database_url,
    }
    workers = []
    for number in range(processes):
        with open(tmp_path / f"{number}.log", "wb") as log:
            workers.append(
                subprocess.Popen(
                    [sys.executable, "manage.py", "work", "--once"],
                    cwd=ROOT,
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )
    assert [worker.wait() for worker in workers] == [0] * processes
    [done] = sql("""
        SELECT count(*), count(DISTINCT job_id) AS jobs,
               extract(epoch FROM max(at) - min((data -> 'details' ->> 'claimed_at')::timestamptz))
                   AS seconds
          FROM job_events WHERE type = 'job:finished'""")
    assert done["count"] == done["jobs"] == JOBS
    report(f"manage.py work, {processes} process(es)", float(done["seconds"]))
