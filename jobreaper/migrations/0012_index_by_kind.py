"""The index that lets claims pass over a long line of paused jobs. It is built under traffic."""

import django.db.models.functions.comparison
from django.db import migrations, models

import jobreaper.base
from jobreaper.operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("jobreaper", "0011_redis_queue_page"),
    ]

    operations = [
        BuildIndex(
            "job",
            jobreaper.base.LeaseIndex(
                django.db.models.functions.comparison.Coalesce("stage", models.Value("")),
                django.db.models.functions.comparison.Coalesce("type", models.Value("")),
                django.db.models.functions.comparison.Coalesce("queue", models.Value("")),
                models.F("priority"),
                django.db.models.functions.comparison.Coalesce(
                    "next_earliest_run_at",
                    django.db.models.functions.comparison.Cast(
                        models.Value("infinity"), models.DateTimeField()
                    ),
                ),
                models.F("id"),
                condition=models.Q(("status", "queued")),
                name="idx_jobreaper_jobs_queued_kind",
            ),
        ),
    ]
