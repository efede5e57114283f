"""`manage.py work` with handlers that never end, at their max_runtime and at a deploy."""

import signal

import pytest

from jobreaper import enqueue, reap
from jobreaper.models import Job
from tests.processes.children import Child
from tests.queue.processes import PATIENCE_SEC, Start
from tests.rows import Rows
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

HOW = ["loop", "sleep", "c", "pool"]
HOW_IN_THE_LOOP = ["wait", "swallow", "block", "thread"]


def running(worker: Child, how: str) -> None:
    assert worker.answer(PATIENCE_SEC) == f"hangs {how}"


@pytest.mark.parametrize("how", HOW)
def test_a_handler_that_hangs_stops_neither_claims_nor_the_end_of_the_process(
    how: str, work: Start, jobs: Rows
) -> None:
    """It is alone, so that it has the only thread."""
    hung = enqueue("hang", {"how": how}, stage="brief")
    worker = work(
        "--no-housekeeping", "--shutdown-timeout", "60s", max_runtime_sec=0.5, lease_sec=60
    )
    running(worker, how)
    quick = [enqueue("noop").pk for _ in range(3)]
    until(lambda: {jobs.row(pk)["status"] for pk in quick} == {"success"}, PATIENCE_SEC)
    assert ("given up and replaced" in worker.log) == (how != "loop")
    assert worker.terminate(PATIENCE_SEC) == 0
    [said] = worker.lines()
    assert said.startswith("3 succeeded, 0 failed, ")
    assert said.endswith(" given back, 1 lost")
    until(lambda: reap([Job], hold=False).requeued == 1)
    assert jobs.events(hung.pk)[-1]["details"]["reason"] == "deadline"


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("signals", [1, 2])
def test_told_to_stop_it_gives_back_what_does_not_end_and_exits_with_0(
    signals: int, how: str, work: Start, jobs: Rows
) -> None:
    job = enqueue("hang", {"how": how})
    worker = work("--shutdown-timeout", "1" if signals == 1 else "10m", lease_sec=60)
    running(worker, how)
    worker.process.terminate()
    if signals == 2:
        worker.process.send_signal(signal.SIGINT)
    assert_given_back(job, worker, jobs)


@pytest.mark.parametrize("how", HOW_IN_THE_LOOP)
def test_told_to_stop_it_gives_back_what_does_not_end_in_the_loop(
    how: str, work: Start, jobs: Rows
) -> None:
    job = enqueue("hang-async", {"how": how})
    worker = work("--shutdown-timeout", "1", lease_sec=60)
    running(worker, how)
    worker.process.terminate()
    assert_given_back(job, worker, jobs)


def assert_given_back(job: Job, worker: Child, jobs: Rows) -> None:
    assert worker.process.wait(PATIENCE_SEC) == 0
    assert "0 succeeded, 0 failed, 1 given back, 0 lost" in worker.lines()
    row = jobs.row(job.pk)
    assert (row["status"], row["attempt_count"]) == ("queued", 0)
    assert Job.objects.due().filter(pk=job.pk).exists()
    assert jobs.event_types(job.pk) == ["job:enqueued", "job:released"]
