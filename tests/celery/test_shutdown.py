"""A worker that is told to stop: what can end ends, what cannot is given back unharmed."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from jobreaper import reap
from jobreaper.states import EventType, Status
from tests.celery.brokers import BROKERS, broker_url
from tests.celery.workers import (
    Worker,
    await_status,
    beats,
    celery_workers,
    exists,
    ready,
    running,
)
from tests.rows import Rows, ago
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

SOFT_SEC = 4

STOP_SEC = 20

PREFORK = ("--pool", "prefork", "--concurrency", "2")

Take = Callable[[], Worker]


@pytest.fixture(scope="module", params=BROKERS)
def take(request: pytest.FixtureRequest, database_url: str) -> Iterator[Take]:
    """Return a worker that no test has stopped yet; they are started all at once."""
    with celery_workers(database_url, broker_url(request.param)) as start:
        workers = [start(*PREFORK, SOFT_SHUTDOWN_SEC="0") for _ in range(3)]
        ready(*workers)
        yield workers.pop


@pytest.fixture(scope="module")
def others(database_url: str) -> Iterator[dict[str, Worker]]:
    """Workers of other kinds, started all at once."""
    with celery_workers(database_url, broker_url("redis")) as start:
        workers = {
            "soft": start(*PREFORK, SOFT_SHUTDOWN_SEC=str(SOFT_SEC)),
            "threads": start("--pool", "threads", "--concurrency", "2"),
            "old": start(*PREFORK, REMAP_SIGTERM="SIGQUIT"),
            "new": start(*PREFORK, REMAP_SIGTERM="SIGQUIT"),
            "killed": start(*PREFORK),
        }
        ready(*workers.values())
        yield workers


def under_way(jobs: Rows, key: int) -> None:
    """Wait until the job runs and the main process knows it: a cold shutdown does not reach the
    child whose word of having begun is still on its way.
    """
    running(jobs, key)
    beats(jobs, key)


def is_released(jobs: Rows, key: int) -> bool:
    """Check that the job was given back with its attempt and may run at once."""
    row = await_status(jobs, key, Status.QUEUED)
    assert (row["attempt_count"], row["reap_count"], row["fail_code"]) == (0, 0, None)
    assert row["next_earliest_run_at"] is None or row["next_earliest_run_at"] <= jobs.now()
    return jobs.event_types(key) == [EventType.JOB_RELEASED]


def test_a_warm_shutdown_lets_jobs_end_while_beats_go_on(take: Take, media: Rows) -> None:
    """solid_queue#568, procrastinate#1585: beats stop last."""
    worker = take()
    keys = [worker.send(media, "wait") for _ in range(2)]
    for key in keys:
        under_way(media, key)
    waiting = worker.send(media, "wait")
    os.kill(worker.child.pid, signal.SIGTERM)
    until(lambda: "Warm shutdown" in worker.output)
    for key in keys:
        beats(media, key)
        beats(media, key)
    for key in keys:
        worker.let_go(key)
        await_status(media, key, Status.SUCCESS)
    assert worker.child.process.wait(STOP_SEC) == 0
    # What it had in hand and not begun is another's, or is sent again.
    row = media.row(waiting)
    assert (row["status"], row["attempt_count"]) == (Status.QUEUED, 0)


def test_a_cold_shutdown_gives_jobs_back_with_their_attempts(take: Take, media: Rows) -> None:
    """celery#2700, asynq#1015: a deploy orphans nothing, and eats no attempts."""
    worker = take()
    stages = ("deed", "acks-late")
    keys = [worker.send(media, "wait", stage, max_attempts=1) for stage in stages]
    for key in keys:
        under_way(media, key)
    os.kill(worker.child.pid, signal.SIGQUIT)
    for key in keys:
        assert is_released(media, key)
    worker.child.process.wait(STOP_SEC)


def test_a_signal_to_every_process_at_once_gives_jobs_back_too(take: Take, media: Rows) -> None:
    """As systemd does it: a child's own signal is no reason to count its job as lost."""
    worker = take()
    key = worker.send(media, "wait", max_attempts=1)
    under_way(media, key)
    os.killpg(worker.child.pid, signal.SIGTERM)
    assert is_released(media, key)
    worker.child.process.wait(STOP_SEC)


def test_a_soft_shutdown_gives_jobs_its_time_and_then_gives_them_back(
    others: dict[str, Worker], media: Rows
) -> None:
    worker = others["soft"]
    quick, slow = worker.send(media, "wait"), worker.send(media, "wait", max_attempts=1)
    under_way(media, quick)
    under_way(media, slow)
    os.kill(worker.child.pid, signal.SIGQUIT)
    until(lambda: "Initiating Soft Shutdown" in worker.log)
    beats(media, slow)
    worker.let_go(quick)
    await_status(media, quick, Status.SUCCESS)
    assert is_released(media, slow)
    worker.child.process.wait(STOP_SEC)


def test_a_worker_with_threads_lets_its_jobs_end_too(
    others: dict[str, Worker], media: Rows
) -> None:
    worker = others["threads"]
    key = worker.send(media, "wait")
    under_way(media, key)
    os.kill(worker.child.pid, signal.SIGTERM)
    until(lambda: "Warm shutdown" in worker.output)
    beats(media, key)
    beats(media, key)
    worker.let_go(key)
    await_status(media, key, Status.SUCCESS)
    assert worker.child.process.wait(STOP_SEC) == 0


def test_two_rolling_deploys_in_a_row_orphan_no_job_and_cost_no_attempt(
    others: dict[str, Worker], media: Rows
) -> None:
    """celery#2700: the next worker is up when the one before it is sent SIGTERM."""
    first, second, third = (others[name] for name in ("old", "new", "killed"))
    keys = [first.send(media, "wait", max_attempts=1) for _ in range(2)]
    for before, after in ((first, second), (second, third)):
        for key in keys:
            under_way(media, key)
        os.kill(before.child.pid, signal.SIGTERM)
        for key in keys:
            row = await_status(media, key, Status.QUEUED)
            assert (row["attempt_count"], row["reap_count"], row["fail_code"]) == (0, 0, None)
            after.nudge(key)
    for key in keys:
        assert running(media, key) in third.children()
        first.let_go(key)
        row = await_status(media, key, Status.SUCCESS)
        assert (row["attempt_count"], row["reap_count"]) == (1, 0)
        released = EventType.JOB_RELEASED
        assert media.event_types(key) == [released, released, EventType.JOB_FINISHED]


def test_a_worker_killed_whole_leaves_its_jobs_to_the_reaper(
    others: dict[str, Worker], media: Rows
) -> None:
    worker = others["killed"]
    key = worker.send(media, "wait")
    pid = running(media, key)
    worker.child.kill()
    until(lambda: not exists(pid))
    assert media.row(key)["status"] == Status.PROCESSING
    media.set(key, lease_expires_at=ago(1))
    assert reap().requeued_ids["jobs"] == [key]
    assert media.event_types(key) == [EventType.REAPER_REQUEUED]
