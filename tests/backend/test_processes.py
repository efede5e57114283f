"""A task in `manage.py work`, whose process is killed."""

from typing import Any

import pytest
from django.utils import timezone

from jobreaper import reap
from jobreaper.backend.compat import TaskResultStatus
from jobreaper.models import Job
from tests.backend import tasks
from tests.queue.processes import PATIENCE_SEC, Start
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


def test_a_task_whose_worker_is_killed_runs_again(work: Start) -> None:
    result: Any = tasks.wait_at_first.enqueue()
    options = {"lease_sec": 1.5, "settings": "tests.backend.settings"}
    worker = work("--no-housekeeping", **options)
    assert worker.answer() == "waiting"
    worker.process.kill()
    until(lambda: reap([Job], hold=False).requeued, PATIENCE_SEC, every_sec=0.1)
    Job.objects.update(next_earliest_run_at=timezone.now())
    other = work("--once", **options)
    assert other.process.wait(PATIENCE_SEC) == 0
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 2)
    assert result.attempts == len(set(result.worker_ids)) == 2
