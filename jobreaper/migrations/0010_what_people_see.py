"""The Reaper page of the admin, and names that tell our tables from those of a project."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("jobreaper", "0009_result"),
    ]

    operations = [
        migrations.CreateModel(
            name="Reaper",
            fields=[],
            options={
                "verbose_name": "reaper",
                "verbose_name_plural": "reaper",
                "permissions": [("run_reaper", "Can run passes of the reaper")],
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("jobreaper.reaperpass",),
        ),
        migrations.AlterModelOptions(
            name="job",
            options={"verbose_name": "queue job", "verbose_name_plural": "queue jobs"},
        ),
        migrations.AlterModelOptions(
            name="jobevent",
            options={"verbose_name": "job event", "verbose_name_plural": "job events"},
        ),
        migrations.AlterModelOptions(
            name="pause",
            options={"verbose_name": "pause", "verbose_name_plural": "pauses"},
        ),
        migrations.AlterModelOptions(
            name="reaperpass",
            options={"verbose_name": "reaper pass", "verbose_name_plural": "reaper passes"},
        ),
        migrations.AlterModelOptions(
            name="schedule",
            options={"verbose_name": "schedule", "verbose_name_plural": "schedules"},
        ),
        migrations.AlterModelOptions(
            name="worker",
            options={"verbose_name": "worker", "verbose_name_plural": "workers"},
        ),
    ]
