"""The periodic tasks of django-celery-beat: made once by migrate, then the operator's."""

from typing import Any

import pytest
from django.apps import apps
from django.core.management.sql import emit_post_migrate_signal
from django.test import modify_settings
from pytest_django import Settings

from jobreaper.celery.schedule import entries

beat_models = pytest.importorskip("django_celery_beat.models")
PeriodicTask: Any = beat_models.PeriodicTask

pytestmark = pytest.mark.django_db

REAP = "jobreaper.reap"


def migrate() -> None:
    """What `manage.py migrate` does once the tables are there."""
    emit_post_migrate_signal(verbosity=0, interactive=False, db="default")


@pytest.fixture(autouse=True)
def no_tasks_yet(db: None) -> None:
    PeriodicTask.objects.filter(task__startswith="jobreaper.").delete()


def test_migrate_makes_one_task_for_each_entry_of_the_schedule() -> None:
    migrate()
    migrate()
    made = PeriodicTask.objects.filter(task__startswith="jobreaper.")
    assert sorted(made.values_list("name", "task")) == sorted(
        (entry.name, entry.task) for entry in entries()
    )
    assert all(made.values_list("enabled", flat=True))


def test_a_task_runs_at_the_interval_of_the_settings_and_expires_within_it(
    settings: Settings,
) -> None:
    settings.JOBREAPER = {"REAPER_INTERVAL_SEC": 42}
    migrate()
    task = PeriodicTask.objects.get(task=REAP)
    assert (task.interval.every, task.interval.period) == (42, "seconds")
    assert task.expire_seconds == 42


def test_an_interval_below_a_second_becomes_the_shortest_that_the_table_can_hold(
    settings: Settings,
) -> None:
    settings.JOBREAPER = {"REAPER_INTERVAL_SEC": 0.2}
    migrate()
    task = PeriodicTask.objects.get(task=REAP)
    assert (task.interval.every, task.expire_seconds) == (1, 1)


def test_tasks_share_an_interval_that_is_there_even_twice() -> None:
    for _ in range(2):
        beat_models.IntervalSchedule.objects.create(every=60, period="seconds")
    before = beat_models.IntervalSchedule.objects.filter(every=60, period="seconds").count()
    migrate()
    assert PeriodicTask.objects.get(task=REAP).interval.every == 60
    after = beat_models.IntervalSchedule.objects.filter(every=60, period="seconds").count()
    assert after == before


@pytest.mark.parametrize(
    "edit",
    [
        {"name": "our reaper"},
        {"enabled": False},
        {"description": "slowed down at night"},
        {"queue": "maintenance", "expire_seconds": 5},
    ],
    ids=lambda edit: " and ".join(edit),
)
def test_what_an_operator_edits_stays_edited(edit: dict[str, Any], settings: Settings) -> None:
    migrate()
    PeriodicTask.objects.filter(task=REAP).update(**edit)
    settings.JOBREAPER = {"REAPER_INTERVAL_SEC": 5}
    migrate()
    [task] = PeriodicTask.objects.filter(task=REAP)
    assert {field: getattr(task, field) for field in edit} == edit
    assert task.interval.every == 60


def test_a_task_that_an_operator_pointed_elsewhere_is_not_in_the_way_of_migrate() -> None:
    migrate()
    PeriodicTask.objects.filter(task=REAP).update(task="ours.reap_and_report")
    migrate()
    assert PeriodicTask.objects.get(name="jobreaper: reap").task == "ours.reap_and_report"


def test_a_deleted_task_comes_back() -> None:
    migrate()
    PeriodicTask.objects.filter(task=REAP).delete()
    migrate()
    assert PeriodicTask.objects.filter(task=REAP).count() == 1


def test_without_the_app_migrate_makes_no_tasks_and_does_not_mind() -> None:
    with modify_settings(INSTALLED_APPS={"remove": "django_celery_beat"}):
        assert not apps.is_installed("django_celery_beat")
        migrate()
    assert not PeriodicTask.objects.filter(task__startswith="jobreaper.").exists()
