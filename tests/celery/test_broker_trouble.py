"""A broker that hangs, goes and comes back: a Redis of the test's own."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobreaper import enqueue
from jobreaper.states import EventType, Status
from project.embedded import Redis
from tests.celery.brokers import Queue, celery_app, job_ids, leased
from tests.celery.workers import (
    Worker,
    await_status,
    beats,
    celery_workers,
    ready,
    running,
)
from tests.rows import Rows
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def redis() -> Iterator[Redis]:
    """A Redis that a test may stop, freeze and start again."""
    with tempfile.TemporaryDirectory(prefix="redis-") as directory:
        redis = Redis(Path(directory), Path(directory))
        redis.start()
        yield redis
        redis.stop()


def test_a_redis_that_accepts_and_never_answers_holds_an_enqueue_up_for_the_socket_timeout(
    redis: Redis, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    with celery_app(redis.url, broker_transport_options={"socket_timeout": 0.5}) as app:

        @leased(app, name="tests.any")
        def work(job: object, lease: object) -> None: ...

        assert redis.server is not None
        redis.server.send_signal(signal.SIGSTOP)
        try:
            job = enqueue("mail")
        finally:
            redis.server.send_signal(signal.SIGCONT)
        row = jobs.row(job.pk)
        assert (row["status"], row["dispatched_at"]) == (Status.QUEUED, None)
        assert f"jobreaper_jobs {job.pk} was not sent: " in caplog.text
        second = enqueue("mail")
        assert str(second.pk) in job_ids(Queue(app).take())


@pytest.fixture
def worker(redis: Redis, database_url: str) -> Iterator[Worker]:
    with celery_workers(database_url, redis.url) as start:
        worker = start("--pool", "prefork", "--concurrency", "2")
        ready(worker)
        yield worker


@pytest.mark.process
def test_a_worker_that_loses_its_redis_goes_on_with_its_jobs_and_resumes(
    worker: Worker, redis: Redis, media: Rows
) -> None:
    """celery#8030; and a loop that starts anew has forgotten the children it watched."""
    key = worker.send(media, "wait")
    pid = running(media, key)
    redis.stop()
    until(lambda: "Trying again" in worker.log)
    beats(media, key)
    redis.start()
    until(lambda: worker.log.count("Connected to redis") > 1)
    until(lambda: worker.app.control.ping())
    assert running(media, key) == pid
    # Celery looks every five seconds.
    os.kill(pid, signal.SIGKILL)
    until(lambda: media.event_types(key) == [EventType.JOB_WORKER_LOST], timeout_sec=3)
    running(media, key, attempt=2)
    following = worker.send(media, "wait")
    for each in (key, following):
        worker.let_go(each)
        await_status(media, each, Status.SUCCESS)
    assert media.event_types(key) == [EventType.JOB_WORKER_LOST, EventType.JOB_FINISHED]
