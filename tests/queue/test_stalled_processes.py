"""`manage.py work` with a handler that gets nowhere, while its worker sends heartbeats."""

import pytest

from jobreaper import enqueue, reap
from jobreaper.models import Job
from tests.queue.processes import PATIENCE_SEC, Start
from tests.rows import Rows
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

STALL_AFTER_SEC = 4.0


def test_a_job_that_gets_nowhere_is_taken_back_although_its_worker_beats(
    work: Start, jobs: Rows
) -> None:
    """The lease is much longer than the test. In its next attempt, the job gets on for longer than
    it may stall, and is left alone.
    """
    job = enqueue("crawl", {"steps": int(STALL_AFTER_SEC * 15)}, stage="crawl", max_attempts=20)
    worker = work("--no-housekeeping", lease_sec=600, stall_after_sec=STALL_AFTER_SEC)
    assert worker.answer(PATIENCE_SEC) == "hangs"
    until(lambda: reap([Job], hold=False).requeued == 1, PATIENCE_SEC)
    assert worker.process.poll() is None
    taken = jobs.events(job.pk)[-1]
    assert (taken["type"], taken["details"]["reason"]) == ("reaper:requeued", "stalled")
    assert taken["details"]["progress"] == {"done": 2, "total": 60, "note": "step 2"}

    # A machine that stands still may look as if the job did, too.
    until(lambda: bool(reap([Job], hold=False)) and done(job), 3 * PATIENCE_SEC)
    assert jobs.row(job.pk)["progress"] == {"done": 60, "total": 60, "note": "whole"}
    assert worker.terminate(PATIENCE_SEC) == 0


def done(job: Job) -> bool:
    return Job.objects.get(pk=job.pk).status == "success"
