"""`manage.py work --reload`: code changes, and the worker starts anew without losing its job."""

import os
from pathlib import Path

import pytest

from jobreaper import enqueue
from jobreaper.management import reloading
from tests.queue.processes import PATIENCE_SEC, Start
from tests.rows import Rows
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

CODE = Path(reloading.__file__)


def test_changed_code_ends_the_worker_after_its_job_and_starts_another(
    work: Start, jobs: Rows
) -> None:
    job = enqueue("who")
    worker = work("--reload", lease_sec=600)
    first = worker.answer(PATIENCE_SEC)
    until(lambda: "watches for changed code" in worker.log, PATIENCE_SEC)
    before = CODE.stat()

    def change() -> bool:
        os.utime(CODE)
        return "code has changed" in worker.log

    try:
        # It compares with what it saw the last time, and nobody knows when it looks first.
        until(change, PATIENCE_SEC, every_sec=0.5)
    finally:
        os.utime(CODE, (before.st_atime, before.st_mtime))
    worker.say("end")
    until(lambda: jobs.row(job.pk)["status"] == "success", PATIENCE_SEC)
    assert worker.answer(PATIENCE_SEC).startswith("1 succeeded")
    enqueue("who")
    assert worker.answer(PATIENCE_SEC) != first
    worker.say("end")
    assert worker.terminate(PATIENCE_SEC) == 0
