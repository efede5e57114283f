"""A task that another backend had run before it was carried over."""

from datetime import UTC, datetime
from typing import Any

from jobreaper.backend.compat import TaskResultStatus
from jobreaper.moving import OldJob, carry_over, job_id
from project.media.models import Job as Old

THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_its_result_says_how_it_failed_there(backend: Any) -> None:
    row = Old.objects.create(status="failed")

    def describe(row: Old) -> OldJob:
        return OldJob(
            type="tests.backend.tasks.echo",
            payload={"args": [1, 2], "kwargs": {}, "backend": "default"},
            status="failed",
            exception="shop.NoPaper",
            traceback="Traceback…\nshop.NoPaper: tray 2\n",
            worker="old-1",
            attempts=1,
            created_at=THEN,
            started_at=THEN,
            finished_at=THEN,
        )

    carry_over(Old.objects.filter(status="failed"), describe)
    result = backend.get_result(str(job_id(row)))
    assert (result.status, result.args, result.worker_ids) == (
        TaskResultStatus.FAILED,
        [1, 2],
        ["old-1"],
    )
    times = (result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at)
    assert times == (THEN, THEN, THEN, THEN)
    [error] = result.errors
    assert error.exception_class_path == "shop.NoPaper"
    assert error.traceback.endswith("tray 2\n")
