"""Tasks that do as little as can be done, with a lease and without."""

import time

from celery import shared_task
from django.db import connection

from jobreaper import Lease, LeasedTask
from project.media.models import Job


@shared_task(ignore_result=True)
def plain(number: int) -> None:
    """What Celery itself costs."""


@shared_task(ignore_result=True)
def plain_with_a_query(number: int) -> None:
    """What any task pays that looks into the database: Celery closes its connection after it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@shared_task(ignore_result=True)
def plain_with_two_writes(number: int) -> None:
    """What any task pays that notes when it begins and when it ends: two commits."""
    with connection.cursor() as cursor:
        for word in ("begun", "ended"):
            cursor.execute(
                "INSERT INTO job_events (job_id, data) VALUES (%s, jsonb_build_object('type', %s))",
                [number, word],
            )


@shared_task(base=LeasedTask, model="media.Job", stage="noop")
def leased(job: Job, lease: Lease) -> None:
    time.sleep(job.payload.get("sec", 0))
