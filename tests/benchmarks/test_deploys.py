"""Workers that are replaced again and again while they are busy: what it costs."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from jobreaper import enqueue, enqueue_many
from tests.benchmarks.conftest import Report
from tests.processes.children import Child
from tests.queue.processes import PATIENCE_SEC, Start, ledger, work
from tests.rows import Rows, Sql
from tests.waiting import until

__all__ = ["ledger", "work"]

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("transactional_db"),
]

JOBS = 2_000
JOB_SEC = 0.6
WORKERS, THREADS = 3, 4
EVERY_SEC, DEPLOYS = 10.0, 12
SHUTDOWN_SEC = 5

LONGEST_GAP = """
SELECT max(gap)::float8 AS sec, count(*) AS finished
  FROM (SELECT extract(epoch FROM at - lag(at) OVER (ORDER BY at)) AS gap
          FROM job_events
         WHERE type = 'job:finished') AS gaps
"""


def is_at_work(worker: Child) -> bool:
    return "running " in worker.log


def test_a_rolling_deploy_every_ten_seconds_for_two_minutes(
    work: Start, sql: Sql, ledger: Callable[[], list[dict[str, Any]]], report: Report
) -> None:
    def start() -> list[Child]:
        options = ("--shutdown-timeout", str(SHUTDOWN_SEC), "--threads", str(THREADS))
        started = [work(*options, lease_sec=300) for _ in range(WORKERS)]
        until(lambda: all(map(is_at_work, started)), PATIENCE_SEC)
        return started

    long = [enqueue("long", {"asks": asks}, priority=1).pk for asks in (True, False)]
    enqueue_many([{"payload": {"sec": JOB_SEC}}] * JOBS, type="paced")
    workers, ended = start(), []
    codes: Counter[int] = Counter()
    began = time.monotonic()
    for number in range(1, DEPLOYS + 1):
        time.sleep(max(0.0, began + number * EVERY_SEC - time.monotonic()))
        old, workers = workers, start()
        for worker in old:
            worker.process.terminate()
        told_at = time.monotonic()
        codes.update(worker.process.wait(PATIENCE_SEC) for worker in old)
        ended.append(time.monotonic() - told_at)
    until(lambda: not sql("SELECT 1 FROM jobreaper_jobs WHERE status <> 'success'"), 300, 1)
    codes.update(worker.terminate(PATIENCE_SEC) for worker in workers)

    rows = Rows(sql, "jobreaper_jobs").all().values()
    attempts = Counter(row["attempt_count"] for row in rows)
    effects = Counter(effect["count"] for effect in ledger())
    events = Counter(row["type"] for row in sql("SELECT type FROM job_events"))
    [gap] = sql(LONGEST_GAP)
    report(
        f"{JOBS:,} jobs of {JOB_SEC:g} s and {len(long)} long ones; {WORKERS} workers of {THREADS} "
        f"threads, replaced {DEPLOYS} times, every {EVERY_SEC:g} s",
        [
            ("", ""),
            ("jobs finished", f"{gap['finished']:,}"),
            ("given back, and run again without a lost attempt", events["job:released"]),
            ("jobs by attempts", dict(attempts)),
            ("jobs by effects", dict(effects)),
            ("exit codes of workers", dict(codes)),
            ("longest time to stop three workers, s", f"{max(ended):.1f}"),
            ("longest time without a finished job, s", f"{gap['sec']:.2f}"),
        ],
    )
    assert attempts == effects == {1: JOBS + len(long)}
    assert codes == {0: WORKERS * (DEPLOYS + 1)}
    assert events.keys() == {"job:enqueued", "job:released", "job:finished"}
