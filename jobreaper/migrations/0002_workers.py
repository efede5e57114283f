"""Workers that are here."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobreaper", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Worker",
            fields=[
                (
                    "worker",
                    models.TextField(
                        help_text="The worker's id.", primary_key=True, serialize=False
                    ),
                ),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("work", "work"),
                            ("celery", "celery"),
                            ("hold", "hold"),
                            ("foreign", "foreign"),
                        ],
                        help_text="What its process is.",
                    ),
                ),
                ("host", models.TextField()),
                ("pid", models.IntegerField()),
                ("version", models.TextField(help_text="The version of jobreaper.")),
                ("runs", models.TextField(blank=True, help_text="What it runs.", null=True)),
                (
                    "leases",
                    models.IntegerField(
                        db_default=0,
                        default=0,
                        help_text="Leases that it held when it was last seen.",
                    ),
                ),
                (
                    "is_direct",
                    models.BooleanField(
                        db_default=True,
                        default=True,
                        help_text="Its sessions are its own. Through a pooler, the lease alone decides.",
                    ),
                ),
                (
                    "started_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "seen_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "silent_since",
                    models.DateTimeField(
                        blank=True, help_text="When its lock was first seen to be free.", null=True
                    ),
                ),
                (
                    "gone_at",
                    models.DateTimeField(
                        blank=True, help_text="When its leases were taken back.", null=True
                    ),
                ),
                (
                    "taken",
                    models.IntegerField(db_default=0, default=0, help_text="Leases taken back."),
                ),
            ],
            options={
                "db_table": "jobreaper_workers",
            },
        ),
    ]
