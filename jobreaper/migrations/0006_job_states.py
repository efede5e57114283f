"""What jobs have saved for their next attempts."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobreaper", "0005_silent_until"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobState",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("table", models.TextField(help_text="The job table's name.")),
                ("job_id", models.TextField(help_text="The job's key.")),
                ("state", models.JSONField(null=True)),
                (
                    "epoch",
                    models.BigIntegerField(help_text="The epoch of the lease that saved it."),
                ),
                (
                    "saved_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "db_table": "jobreaper_states",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("table", "job_id"), name="uniq_jobreaper_states"
                    )
                ],
            },
        ),
    ]
