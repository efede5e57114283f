"""The tables as they were before jobreaper: plain rows that plain SQL can insert."""

from typing import Any

from django.db import migrations, models
from django.db.models.functions import Now


def columns() -> list[tuple[str, "models.Field[Any, Any]"]]:
    return [
        (
            "id",
            models.BigAutoField(
                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
            ),
        ),
        ("status", models.TextField(default="queued", db_default="queued")),
        ("stage", models.TextField(null=True, blank=True)),
        ("last_heartbeat_at", models.DateTimeField(null=True, blank=True)),
        ("attempt_count", models.IntegerField(default=0, db_default=0)),
        ("payload", models.JSONField(default=dict, db_default={}, blank=True)),
        ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
        ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
    ]


class Migration(migrations.Migration):
    initial = True
    dependencies = []

    operations = [
        migrations.CreateModel("Job", columns(), {"db_table": "jobs"}),
        migrations.CreateModel(
            "AsrJob",
            columns(),
            {"db_table": "asr_jobs", "verbose_name": "speech recognition job"},
        ),
    ]
