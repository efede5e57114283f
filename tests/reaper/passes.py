"""A pass over what a test has planted."""

from datetime import datetime, timedelta
from typing import Any

from jobreaper import reap
from jobreaper.models import Job as OwnJob
from jobreaper.reaper import PassResult
from project.media.models import AsrJob, Job
from tests.rows import Rows


def reap_all() -> PassResult:
    return reap([Job, AsrJob, OwnJob])


def requeued_and_failed(jobs: Rows) -> tuple[list[Any], list[Any]]:
    """Run a pass over the table and return the keys it requeued and failed."""
    result = reap([jobs.table])
    assert result.all_errors == []
    return sorted(result.requeued_ids[jobs.table]), sorted(result.failed_ids[jobs.table])


def assert_left_alone(jobs: Rows, key: Any) -> None:
    before = jobs.row(key)
    assert requeued_and_failed(jobs) == ([], [])
    assert jobs.row(key) == before
    assert jobs.events(key) == []


def waits(jobs: Rows, key: Any) -> timedelta:
    """Return how long after the reap the job is due."""
    event = jobs.events(key)[-1]
    run_at: datetime = jobs.row(key)["next_earliest_run_at"]
    return run_at - datetime.fromisoformat(event["at"])
