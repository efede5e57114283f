"""The schedule as rows of django-celery-beat, which are created once and then belong to the
operator.
"""

from __future__ import annotations

import math
from typing import Any

from django.apps import AppConfig, apps
from django.db import connections, router
from django.db.models import Q

from jobreaper.celery.schedule import entries


def create_periodic_tasks(sender: AppConfig, using: str, **kwargs: Any) -> None:
    """Create the periodic tasks that do not exist yet; a receiver of ``post_migrate``.

    A row is recognized by its task or by its name, so a row that an operator renamed, slowed down,
    disabled or changed is left as it is. A row that was deleted is created again: to stop a task,
    disable it.
    """
    if sender.label not in ("jobreaper", "django_celery_beat"):
        return
    if not apps.is_installed("django_celery_beat"):
        return
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    if not router.allow_migrate_model(using, PeriodicTask):
        return
    # Beat reads one database, and these models look for rows of the same name there, whichever
    # database they are saved to.
    if using != router.db_for_write(PeriodicTask):
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
