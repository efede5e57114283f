"""The schedule as rows of django-celery-beat, made once and then left to the operator."""

from __future__ import annotations

import math
from typing import Any

from django.apps import AppConfig, apps
from django.db import connections, router
from django.db.models import Q

from jobreaper.celery.schedule import entries


def create_periodic_tasks(sender: AppConfig, using: str, **kwargs: Any) -> None:
    """Create the periodic tasks that do not exist yet; a receiver of ``post_migrate``.

    A task is known by the task it runs or by its name, so one that an operator renamed, slowed
    down, disabled or pointed elsewhere is left as it is. One that was deleted comes back: to stop a
    task, disable it.
    """
    if sender.label not in ("jobreaper", "django_celery_beat"):
        return
    if not apps.is_installed("django_celery_beat"):
        return
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    if not router.allow_migrate_model(using, PeriodicTask):
        return
    # `migrate jobreaper` alone may run before the other app's tables exist.
    tables = connections[using].introspection.table_names()
    if PeriodicTask._meta.db_table not in tables:
        return
    tasks = PeriodicTask.objects.using(using)
    for entry in entries():
        if tasks.filter(Q(task=entry.task) | Q(name=entry.name)).exists():
            continue
        every = max(1, round(entry.every_sec))
        interval = IntervalSchedule.objects.using(using).filter(
            every=every, period=IntervalSchedule.SECONDS
        ).first() or IntervalSchedule.objects.using(using).create(
            every=every, period=IntervalSchedule.SECONDS
        )
        tasks.create(
            name=entry.name,
            task=entry.task,
            interval=interval,
            expire_seconds=math.ceil(entry.every_sec),
        )
