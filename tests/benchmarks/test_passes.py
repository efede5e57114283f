"""What a pass costs, beside the same statements without this package around them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from psycopg import ClientCursor

from jobreaper import conf, reap
from jobreaper.identity import worker_id
from jobreaper.reaper import DEFAULT_BATCH_SIZE
from jobreaper.tables import table_of
from project.media.models import Job
from tests.benchmarks.conftest import EXPIRED, ROWS, Load, Report

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(1800),
    pytest.mark.django_db(transaction=True),
]

ROUNDS = 2


def statement(batch: int) -> str:
    """A batch's statement as it could be typed into psql."""
    params = {
        "batch": batch,
        "skip": [],
        "silent_by": "infinity",
        "only": None,
        "policies": conf.settings().policies_json,
        "reaper": worker_id(),
    }
    connection.ensure_connection()
    return ClientCursor(connection.connection).mogrify(table_of(Job).reap_statement, params)


def by_hand(database_url: str, batch: int) -> float:
    reaped = 0
    text = statement(batch).encode()
    started = time.perf_counter()
    # psql prepares nothing either.
    with psycopg.connect(database_url, autocommit=True, prepare_threshold=None) as client:
        while rows := client.execute(text).fetchall():
            reaped += len(rows)
    assert reaped == EXPIRED
    return time.perf_counter() - started


def by_the_command(database_url: str, batch: int) -> float:
    options = ["--table", "jobs", "--batch-size", str(batch), "--format", "json", "--no-hold"]
    done = subprocess.run(
        [sys.executable, "manage.py", "reap", *options],
        cwd=Path(__file__).resolve().parents[2],
        env={
            **os.environ,
            "DATABASE_URL": database_url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    result = json.loads(done.stdout)
    assert result["requeued"] == EXPIRED
    return float(result["duration_ms"]) / 1000


@pytest.mark.parametrize("batch", [DEFAULT_BATCH_SIZE, 10_000])
def test_a_pass_over_many_expired_jobs(
    batch: int, database_url: str, load: Load, report: Report
) -> None:
    best = {by_hand: float("inf"), by_the_command: float("inf")}
    for _ in range(ROUNDS):
        for run in best:
            load(expired=EXPIRED)
            best[run] = min(best[run], run(database_url, batch))
    report(
        f"{EXPIRED:,} expired of {ROWS:,} rows, batches of {batch:,}, best of {ROUNDS}",
        [
            ("", "seconds", "jobs/s", "ratio"),
            *(
                (
                    run.__name__.replace("_", " "),
                    f"{taken:.2f}",
                    f"{EXPIRED / taken:,.0f}",
                    f"{best[by_hand] / taken:.2f}",
                )
                for run, taken in best.items()
            ),
        ],
    )


def test_a_pass_with_nothing_to_do(load: Load, report: Report) -> None:
    load(live=1000)
    times: list[tuple[float, list[float]]] = []
    for _ in range(20):
        spent: list[float] = []

        def clock(execute: Any, *arguments: Any, spent: list[float] = spent) -> Any:
            started = time.perf_counter()
            answer = execute(*arguments)
            spent.append((time.perf_counter() - started) * 1000)
            return answer

        started = time.perf_counter()
        with connection.execute_wrapper(clock):
            assert reap(["jobs"]).requeued == 0
        times.append(((time.perf_counter() - started) * 1000, spent))
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement(DEFAULT_BATCH_SIZE)}")
        [(text,)] = cursor.fetchall()
    [plan] = json.loads(text) if isinstance(text, str) else text
    wall, spent = sorted(times)[len(times) // 2]
    report(
        f"An idle pass, {ROWS:,} rows, 1,000 of them running; median of {len(times)}",
        [
            ("", "ms"),
            ("wall clock, with its record", f"{wall:.2f}"),
            (f"{len(spent)} statements as the client waits for them", f"{sum(spent):.2f}"),
            ("the reap statement: planning", f"{plan['Planning Time']:.2f}"),
            ("the reap statement: execution", f"{plan['Execution Time']:.2f}"),
        ],
    )
