"""The pools without children to watch: threads, solo and gevent."""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

import pytest

from jobreaper import cancel
from jobreaper.states import EventType, Status
from project.media.models import Job
from tests.celery.brokers import broker_url
from tests.celery.workers import (
    Worker,
    await_status,
    beats,
    celery_workers,
    exists,
    ready,
    running,
)
from tests.rows import Rows
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

POOLS = {"threads": 4, "solo": 1, "gevent": 100}

OfPool = Callable[[str], Worker]


@pytest.fixture(scope="module")
def of_pool(database_url: str) -> Iterator[OfPool]:
    """A worker of each pool, all started at once."""
    with celery_workers(database_url, broker_url("redis")) as start:
        workers = {
            pool: start("--pool", pool, "--concurrency", str(size)) for pool, size in POOLS.items()
        }
        ready(*workers.values())
        yield lambda pool: workers[pool]


@pytest.fixture(params=POOLS)
def worker(request: pytest.FixtureRequest, of_pool: OfPool) -> Worker:
    return of_pool(request.param)


@pytest.fixture(params=["threads", "solo"])
def worker_with_threads(request: pytest.FixtureRequest, of_pool: OfPool) -> Worker:
    return of_pool(request.param)


def test_a_job_runs_is_beaten_and_is_finished(worker: Worker, media: Rows) -> None:
    key = worker.send(media, "wait")
    assert running(media, key) == worker.child.pid
    beats(media, key)
    beats(media, key)
    worker.let_go(key)
    await_status(media, key, Status.SUCCESS)
    assert media.event_types(key) == [EventType.JOB_FINISHED]


def test_one_greenlet_or_thread_beats_for_all_jobs(worker: Worker, media: Rows) -> None:
    keys = [worker.send(media, "write_names") for _ in range(3)]
    names = [await_status(media, key, Status.SUCCESS)["payload"]["names"] for key in keys]
    assert [name["beats"] for name in names] == [1, 1, 1]


def test_a_job_that_fails_is_retried_and_the_worker_goes_on(worker: Worker, media: Rows) -> None:
    key = worker.send(media, "fail")
    until(lambda: media.event_types(key) == [EventType.JOB_RETRIED])
    assert media.row(key)["fail_reason"] == "it had to fail"
    after = worker.send(media, "write_names")
    await_status(media, after, Status.SUCCESS)


@pytest.mark.parametrize("deed", ["exit_", "raise_bare"])
def test_a_function_that_exits_takes_no_worker_with_it(
    deed: str, worker: Worker, media: Rows
) -> None:
    key = worker.send(media, deed)
    until(lambda: media.event_types(key) == [EventType.JOB_RETRIED])
    after = worker.send(media, "write_names")
    await_status(media, after, Status.SUCCESS)
    assert exists(worker.child.pid)


def test_a_message_delivered_twice_runs_once(worker: Worker, media: Rows) -> None:
    key = worker.send(media, "write_names")
    worker.nudge(key)
    until(lambda: f"do refused {key}: " in worker.log)
    await_status(media, key, Status.SUCCESS)
    assert media.row(key)["attempt_count"] == 1


def test_a_cancelled_job_stops_when_it_asks(worker: Worker, media: Rows) -> None:
    key = worker.send(media, "wait")
    running(media, key)
    cancel(Job, [key], by="somebody")
    until(lambda: f"lost the lease of jobs {key}" in worker.log)
    assert media.row(key)["status"] == Status.CANCELLED
    assert media.event_types(key) == [EventType.ADMIN_CANCELLED]


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_revoke_with_terminate_cancels_a_running_job(
    pool: str, of_pool: OfPool, media: Rows
) -> None:
    """A greenlet is killed, a thread is told at its next beat."""
    worker = of_pool(pool)
    said = len(worker.log)
    id = f"revoked-in-mid-run-{pool}"
    key = worker.send(media, "wait", task_id=id)
    running(media, key)
    worker.app.control.revoke(id, terminate=True)
    row = await_status(media, key, Status.CANCELLED)
    assert row["fail_code"] is None
    [event] = media.events(key)
    assert (event["type"], event["details"]["reason"]) == (EventType.JOB_CANCELLED, "revoked")
    after = worker.send(media, "write_names")
    await_status(media, after, Status.SUCCESS)
    assert media.event_types(key) == [EventType.JOB_CANCELLED]
    assert "Traceback" not in worker.log[said:]


def test_with_gevent_a_hard_time_limit_is_an_exception_at_the_next_yield(
    of_pool: OfPool, media: Rows
) -> None:
    worker = of_pool("gevent")
    key = worker.send(media, "wait", time_limit=1)
    until(lambda: media.event_types(key) == [EventType.JOB_RETRIED])
    assert media.row(key)["fail_code"] == "Timeout"


def test_with_interrupt_a_function_that_never_asks_is_stopped(
    worker_with_threads: Worker, media: Rows
) -> None:
    worker = worker_with_threads
    key = worker.send(media, "wait_unaware", stage="interruptible")
    running(media, key)
    cancel(Job, [key], by="somebody")
    until(lambda: "do_interruptible stopped: " in worker.log)
    assert media.event_types(key) == [EventType.ADMIN_CANCELLED]


def test_gevent_does_not_interrupt_and_refuses_what_the_loser_writes(
    of_pool: OfPool, media: Rows
) -> None:
    """All greenlets are one thread: another job would be hit."""
    worker = of_pool("gevent")
    key = worker.send(media, "wait_unaware", stage="interruptible")
    other = worker.send(media, "wait_unaware")
    running(media, key)
    running(media, other)
    cancel(Job, [key], by="somebody")
    beats(media, other)
    worker.let_go(key)
    until(lambda: "do_interruptible stopped: " in worker.log)
    assert media.row(key)["status"] == Status.CANCELLED
    worker.let_go(other)
    await_status(media, other, Status.SUCCESS)


def test_a_hundred_busy_greenlets_miss_no_beat(of_pool: OfPool, media: Rows) -> None:
    """celery#5157."""
    worker = of_pool("gevent")
    keys = []
    for _ in range(4):
        # A few at a time: not every server has a hundred connections to give at once.
        keys += [worker.send(media, "wait") for _ in range(25)]
        until(lambda: all(row["status"] == Status.PROCESSING for row in media.all().values()))
    for _ in range(3):
        before = {key: row["last_heartbeat_at"] for key, row in media.all().items()}
        until(partial(_all_beaten_since, media, before))
    for key in keys:
        worker.let_go(key)
    until(lambda: all(row["status"] == Status.SUCCESS for row in media.all().values()), 30)
    counts = {(row["attempt_count"], row["reap_count"]) for row in media.all().values()}
    assert counts == {(1, 0)}


def _all_beaten_since(jobs: Rows, before: dict[int, datetime]) -> bool:
    return all(row["last_heartbeat_at"] > before[key] for key, row in jobs.all().items())


def test_threads_run_jobs_side_by_side_and_each_with_its_own_lease(
    of_pool: OfPool, media: Rows
) -> None:
    worker = of_pool("threads")
    keys = [worker.send(media, "wait") for _ in range(3)]
    for key in keys:
        running(media, key)
    cancel(Job, keys[:1], by="somebody")
    until(lambda: f"lost the lease of jobs {keys[0]}" in worker.log)
    for key in keys[1:]:
        beats(media, key)
        worker.let_go(key)
        await_status(media, key, Status.SUCCESS)
