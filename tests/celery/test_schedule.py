"""`beat_schedule()` as Celery's own scheduler takes it."""

import uuid
from collections.abc import Iterator

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.schedules import schedule
from django.conf import settings as django_settings
from django.core.checks import run_checks
from pytest_django import Settings

from jobreaper import beat_schedule
from jobreaper.celery.schedule import entries


@pytest.fixture
def app() -> Iterator[Celery]:
    """A Celery app on the real broker, with a queue of its own."""
    app = Celery("a-users-own", broker=django_settings.CELERY_BROKER_URL, set_as_current=False)
    app.conf.task_default_queue = f"schedule-{uuid.uuid4().hex}"
    yield app
    with app.connection_for_write() as connection:
        connection.SimpleQueue(app.conf.task_default_queue).queue.delete()
    app.close()


def test_a_pass_is_scheduled_as_often_as_the_setting_says(settings: Settings) -> None:
    settings.JOBREAPER = {"REAPER_INTERVAL_SEC": 7.5}
    assert beat_schedule()["jobreaper: reap"] == {
        "task": "jobreaper.reap",
        "schedule": 7.5,
        "options": {"expires": 7.5},
    }


def test_every_entry_expires_before_it_is_sent_again() -> None:
    for entry in beat_schedule().values():
        assert 0 < entry["options"]["expires"] <= entry["schedule"]
    assert {entry["task"] for entry in beat_schedule().values()} == {e.task for e in entries()}


def test_celery_schedules_the_entries_beside_a_users_own(app: Celery) -> None:
    own = {"mine": {"task": "mine", "schedule": 3600}}
    app.conf.beat_schedule = {**own, **beat_schedule()}
    scheduler = Scheduler(app)
    assert {"mine", *beat_schedule()} <= set(scheduler.schedule)
    every_sec = beat_schedule()["jobreaper: reap"]["schedule"]
    assert scheduler.schedule["jobreaper: reap"].schedule == schedule(every_sec)


def test_the_message_of_a_pass_carries_its_expiry(app: Celery) -> None:
    app.conf.beat_schedule = beat_schedule()
    scheduler = Scheduler(app)
    scheduler.apply_async(scheduler.schedule["jobreaper: reap"], advance=False)
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue(app.conf.task_default_queue).get(timeout=10)
        message.ack()
    assert message.headers["task"] == "jobreaper.reap"
    assert message.headers["expires"] is not None


def test_a_schedule_made_before_the_settings_is_warned_of(settings: Settings) -> None:
    settings.JOBREAPER = {}
    beat_schedule()
    settings.JOBREAPER = {"REAPER_INTERVAL_SEC": 7.5}
    [warning] = run_checks(tags=["jobreaper"])
    assert warning.id == "jobreaper.W005"
    beat_schedule()
    assert run_checks(tags=["jobreaper"]) == []
    settings.JOBREAPER = {}
    beat_schedule()


def test_a_bad_setting_is_left_to_the_checks(settings: Settings) -> None:
    settings.JOBREAPER = {"REAPER_INTERVAL_SEC": "soon"}
    assert beat_schedule()["jobreaper: reap"]["schedule"] == 60
    [error] = run_checks(tags=["jobreaper"])
    assert error.id == "jobreaper.E002"
