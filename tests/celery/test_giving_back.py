"""What a worker's main process does for a dead child, where something is in the way."""

import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.worker import state
from django.db import connections
from django.test import override_settings

from jobreaper.celery import children
from jobreaper.celery.request import LeasedRequest
from jobreaper.db import own
from jobreaper.identity import id_of_child
from jobreaper.models import Job
from jobreaper.states import EventType, Status
from tests.celery.brokers import Queue, declare
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")

CHILD = 4_000_001


def plant_held_by_child(jobs: Rows) -> Any:
    return jobs.plant_running(locked_by=id_of_child(CHILD))


class ElsewhereRouter:
    """Sends one model to a database that there is not."""

    def db_for_write(self, model: type, **hints: Any) -> str | None:
        return "nowhere" if model is Job else None


def test_a_table_that_cannot_be_read_keeps_no_other_waiting(
    jobs: Rows, media: Rows, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    plant_held_by_child(jobs)
    key = plant_held_by_child(media)
    sql("ALTER TABLE jobreaper_jobs RENAME TO jobreaper_jobs_away")
    try:
        children.give_back(CHILD, "signal 9 (SIGKILL)")
    finally:
        sql("ALTER TABLE jobreaper_jobs_away RENAME TO jobreaper_jobs")
    assert media.event_types(key) == [EventType.JOB_WORKER_LOST]
    assert media.row(key)["status"] == Status.QUEUED
    [said] = [m for m in caplog.messages if "could not be given back and will run out: " in m]
    assert "jobreaper_jobs: " in said


def test_a_database_that_there_is_not_keeps_no_other_waiting(
    media: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    key = plant_held_by_child(media)
    with override_settings(DATABASE_ROUTERS=[ElsewhereRouter()]):
        children.give_back(CHILD, "signal 9 (SIGKILL)")
    assert media.event_types(key) == [EventType.JOB_WORKER_LOST]
    assert "could not be given back and will run out: " in caplog.text


@pytest.fixture
def silent_database(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One that accepts connections and never answers."""
    monkeypatch.setitem(own.NETWORK_OPTIONS, "connect_timeout", 2)
    database = connections["default"]
    database.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"HOST": "127.0.0.1", "PORT": server.getsockname()[1]}
        for name, value in place.items():
            monkeypatch.setitem(database.settings_dict, name, value)
        yield
        monkeypatch.undo()


@pytest.mark.usefixtures("silent_database")
def test_a_database_that_never_answers_does_not_hold_the_main_process_when_a_child_dies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began = time.monotonic()
    children.give_back(CHILD, "signal 9 (SIGKILL)")
    assert time.monotonic() - began < 10
    assert caplog.text.count("could not be given back and will run out: ") == 1


@pytest.mark.usefixtures("silent_database")
def test_a_database_that_never_answers_does_not_hold_the_main_process_when_a_job_is_revoked(
    one_app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    task = declare(one_app, lambda job, lease: None)
    task.apply_async(args=[str(uuid.uuid4())], task_id="revoked-in-silence")
    [message] = Queue(one_app).take()
    request = LeasedRequest(message, app=one_app, task=task, hostname="here")
    state.revoked.add("revoked-in-silence")
    began = time.monotonic()
    assert request.revoked()
    assert time.monotonic() - began < 10
    assert "was not cancelled: " in caplog.text
