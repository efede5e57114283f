"""The queue: priorities, unique dedupe keys, pauses, metering."""

import django.db.models.functions.datetime
from django.db import migrations, models

import jobreaper.base
import jobreaper.ids
import jobreaper.models
from jobreaper.sql import compose, render


class Migration(migrations.Migration):
    dependencies = [("jobreaper", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Pause",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("table", models.TextField(help_text="The job table's name.")),
                ("name", models.TextField(help_text="The stage or the type that is paused.")),
                (
                    "reason",
                    models.TextField(blank=True, help_text="Why, for others to read.", null=True),
                ),
                ("by", models.TextField(blank=True, help_text="Who paused it.", null=True)),
                (
                    "at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={"db_table": "jobreaper_pauses"},
        ),
        migrations.AddField(
            model_name="job",
            name="priority",
            field=models.SmallIntegerField(
                db_default=0,
                default=0,
                help_text="Jobs of a higher priority are claimed first.",
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="dedupe_key",
            field=models.TextField(
                blank=True,
                help_text="No two queued or processing jobs have the same; empty: never merged.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="id",
            field=models.UUIDField(
                default=jobreaper.ids.new_id,
                editable=False,
                primary_key=True,
                serialize=False,
            ),
        ),
        migrations.AlterField(
            model_name="reaperpass",
            name="trigger",
            field=models.TextField(
                choices=[
                    ("beat", "beat"),
                    ("command", "command"),
                    ("admin", "admin"),
                    ("sql", "sql"),
                    ("tick", "tick"),
                    ("python", "python"),
                ],
                default="python",
                help_text="Who asked for the pass.",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=jobreaper.base.LeaseIndex(
                condition=models.Q(("finished_at__isnull", False)),
                fields=["status", "finished_at"],
                name="idx_jobreaper_jobs_finished",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=jobreaper.base.LeaseIndex(
                condition=models.Q(("status", "queued")),
                fields=["-priority", "next_earliest_run_at", "id"],
                name="idx_jobreaper_jobs_queued_priority",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                jobreaper.models.Digest("dedupe_key"),
                condition=models.Q(
                    ("dedupe_key__isnull", False),
                    ("status__in", ["queued", "processing"]),
                ),
                name="uniq_jobreaper_jobs_dedupe",
            ),
        ),
        migrations.AddConstraint(
            model_name="pause",
            constraint=models.UniqueConstraint(
                fields=("table", "name"), name="uniq_jobreaper_pauses"
            ),
        ),
        migrations.RunSQL(
            render(
                "views/metering", {"measured_seconds": compose("fragments/measured_seconds", {})}
            ),
            "DROP VIEW IF EXISTS jobreaper_metering",
        ),
    ]
