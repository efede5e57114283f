"""Notifications: they wake workers, and never cost a job."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.test import override_settings
from psycopg.errors import ProgramLimitExceeded

from jobreaper import enqueue, enqueue_many
from jobreaper.models import Job
from project.embedded import Postgres
from tests.processes.children import Child
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")

# The smallest queue there is, half a megabyte, in place of 8 GB.
SMALL_QUEUE = "max_notify_queue_pages = 64"

ENQUEUE = """
import django; django.setup()
from django.db import transaction
from jobreaper import enqueue, enqueue_many
with transaction.atomic():
    enqueue("mail")
    enqueue_many([{}] * 3, type="mail")
print("committed")
"""


@pytest.fixture
def listener(dsn: str) -> Iterator[Any]:
    """What is heard of the ready-made table."""
    with psycopg.connect(dsn, autocommit=True) as client:
        client.execute('LISTEN "jobreaper_jobs"')
        yield lambda: list(client.notifies(timeout=0.2))


@pytest.mark.parametrize("make", [lambda: enqueue("idle"), lambda: enqueue_many([{}], type="idle")])
def test_notifications_can_be_switched_off(make: Any, listener: Any) -> None:
    make()
    assert len(listener()) == 1
    with override_settings(JOBREAPER={"NOTIFY": False}):
        make()
    assert listener() == []
    assert Job.objects.count() == 2


def test_without_notifications_a_worker_does_not_listen_and_finds_its_jobs_by_looking(
    working: Any,
) -> None:
    with override_settings(JOBREAPER={"NOTIFY": False}):
        worker = working()
        enqueue("idle")
        until(lambda: worker.tally.succeeded == 1)
    assert worker._listener is None


def fill(client: Any) -> None:
    for _ in range(1000):
        client.execute("SELECT pg_notify('something', repeat('x', 7000))")


@pytest.mark.process
@pytest.mark.slow
def test_a_queue_of_notifications_that_is_full_costs_no_job(
    server: Postgres, tmp_path: Path
) -> None:
    """One listener that has hung in a transaction keeps the server from ever emptying it."""
    server.start()
    with psycopg.connect(server.url, autocommit=True) as client:
        client.execute(f"ALTER SYSTEM SET {SMALL_QUEUE}")
    server.start()
    where = {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": server.url}

    def run(*arguments: str) -> Child:
        child = Child(arguments, where, tmp_path / "log")
        try:
            assert child.process.wait(60) == 0, child.log
        finally:
            child.end()
        return child

    run("manage.py", "migrate")
    with psycopg.connect(server.url) as stuck, psycopg.connect(server.url) as other:
        stuck.execute("LISTEN something")
        stuck.commit()
        stuck.execute("SELECT 1")
        other.autocommit = True
        with pytest.raises(ProgramLimitExceeded):
            fill(other)
        run("-c", ENQUEUE)
        [count] = other.execute("SELECT count(*) FROM jobreaper_jobs").fetchone() or [None]
        assert count == 4
