"""The task `jobreaper.reap`, run by real Celery processes on a real broker."""

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management.sql import emit_post_migrate_signal

from jobreaper.models import ReaperPass
from jobreaper.states import EventType, Status, Trigger
from project.celery import app
from tests.committed import transactional_db  # noqa: F401
from tests.processes.children import Child
from tests.rows import Rows
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

START_SEC = 60
NAME = "celery-under-test"

Celery = Callable[..., Child]


@pytest.fixture
def queue() -> Iterator[str]:
    """A queue that no other process listens to."""
    name = f"reap-{uuid.uuid4().hex}"
    yield name
    with app.connection_for_write() as connection:
        connection.SimpleQueue(name).queue.delete()


@pytest.fixture
def celery(database_url: str, tmp_path: Path) -> Iterator[Celery]:
    """Start a Celery process on the test database and wait until it is at work."""
    children: list[Child] = []

    def start(*arguments: str, ready: str) -> Child:
        child = Child(
            ["-m", "celery", "-A", "project", *arguments, "--loglevel", "INFO"],
            {
                "DATABASE_URL": f"{database_url}&application_name={NAME}",
                "DJANGO_SETTINGS_MODULE": "tests.settings",
            },
            tmp_path / f"celery-{len(children)}.log",
        )
        children.append(child)
        until(lambda: ready in child.log, timeout_sec=START_SEC)
        return child

    yield start
    for child in children:
        child.end()


def start_worker(celery: Celery, queue: str) -> Child:
    quiet = ("--without-mingle", "--without-gossip", "--without-heartbeat")
    own = ("--queues", queue, "--hostname", f"{queue}@%h")
    return celery("worker", "--pool", "solo", *own, *quiet, ready="ready.")


def test_a_worker_runs_the_passes_that_are_sent_and_not_those_that_piled_up(
    celery: Celery, queue: str, sql: Any
) -> None:
    jobs = Rows(sql)
    key = jobs.plant_expired()
    for _ in range(3):
        a_minute_ago = datetime.now(UTC) - timedelta(minutes=1)
        app.send_task("jobreaper.reap", queue=queue, expires=a_minute_ago)
    start_worker(celery, queue)

    # A queue keeps its order: what runs this pass has had those before in hand, or its broker has.
    app.send_task("jobreaper.reap", queue=queue, expires=60)
    until(lambda: jobs.row(key)["status"] == Status.QUEUED)
    assert jobs.event_types(key) == [EventType.REAPER_REQUEUED]
    [record] = until(lambda: list(ReaperPass.objects.all()))
    assert (record.trigger, record.requeued) == (Trigger.BEAT, 1)

    # Between two passes the database ends the worker's sessions, as an idle timeout does.
    sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", NAME)
    again = jobs.plant_expired()
    app.send_task("jobreaper.reap", queue=queue)
    until(lambda: jobs.row(again)["status"] == Status.QUEUED)


@pytest.mark.slow
def test_beat_finds_the_lost_jobs_without_being_told_and_two_beats_find_each_once(
    celery: Celery, queue: str, sql: Any
) -> None:
    """sidekiq#5540: a crash without a restart; telemetry-analysis#417: two beats."""
    models = pytest.importorskip("django_celery_beat.models")
    every_second = models.IntervalSchedule.objects.create(every=1, period="seconds")
    models.PeriodicTask.objects.all().delete()
    models.PeriodicTask.objects.create(
        name="jobreaper: reap", task="jobreaper.reap", interval=every_second, queue=queue
    )
    try:
        start_worker(celery, queue)
        for _ in range(2):
            celery("beat", "--max-interval", "1", "--pidfile", "", ready="beat: Starting")
        jobs = Rows(sql)
        keys = [jobs.plant_expired() for _ in range(20)]
        until(lambda: all(jobs.row(key)["status"] == Status.QUEUED for key in keys))
        passes = ReaperPass.objects.count()
        until(lambda: ReaperPass.objects.count() >= passes + 3)
        for key in keys:
            assert jobs.event_types(key) == [EventType.REAPER_REQUEUED]
    finally:
        models.PeriodicTask.objects.all().delete()
        emit_post_migrate_signal(verbosity=0, interactive=False, db="default")
