"""Workers that are replaced one after another while they are busy."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from jobreaper import enqueue, enqueue_many
from tests.processes.children import Child
from tests.queue.processes import PATIENCE_SEC, Start
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.usefixtures("transactional_db"),
]

SHORT = 2000


def runs_jobs(worker: Child) -> bool:
    return "running " in worker.log


def test_a_rolling_deploy_loses_no_job_and_no_attempt(
    work: Start, jobs: Rows, ledger: Callable[[], list[dict[str, Any]]], sql: Sql
) -> None:
    """Three workers; the long jobs outlast two of them each, one that asks and one that does
    not.
    """

    def start() -> Child:
        return work("--shutdown-timeout", "500ms", "--concurrency", "2", lease_sec=30)

    long = [enqueue("long", {"asks": asks}, priority=1).pk for asks in (True, False)]
    enqueue_many([{}] * SHORT, type="short")
    workers = [start() for _ in range(3)]
    until(lambda: all(map(runs_jobs, workers)), PATIENCE_SEC)
    while sql("SELECT 1 FROM jobreaper_jobs WHERE status <> 'success' LIMIT 1"):
        workers.append(start())
        until(lambda: runs_jobs(workers[-1]), PATIENCE_SEC)
        assert workers.pop(0).terminate(PATIENCE_SEC) == 0
    assert [worker.terminate(PATIENCE_SEC) for worker in workers] == [0, 0, 0]

    rows = jobs.all().values()
    assert Counter(row["attempt_count"] for row in rows) == {1: SHORT + len(long)}
    effects = ledger()
    assert len(effects) == SHORT + len(long)
    assert {effect["count"] for effect in effects} == {1}
    events = {row["type"] for row in sql("SELECT DISTINCT type FROM job_events")}
    assert events == {"job:enqueued", "job:released", "job:finished"}
    # On a busy machine, one may also have been given back before it had its turn.
    assert min(jobs.event_types(pk).count("job:released") for pk in long) >= 2
