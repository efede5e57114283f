"""What the counters have counted, and the trace in which a job was made."""

import django.db.models.functions.datetime
from django.db import migrations, models

import jobreaper.tracecontext


class Migration(migrations.Migration):
    dependencies = [("jobreaper", "0002_queue")]

    operations = [
        migrations.CreateModel(
            name="Total",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.TextField(help_text="What is counted.")),
                (
                    "table",
                    models.TextField(help_text="The job table, empty where it is none of them."),
                ),
                ("stage", models.TextField(db_default="", default="")),
                ("count", models.BigIntegerField(db_default=1, default=1)),
                (
                    "microseconds",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="The durations of what was counted, added up.",
                    ),
                ),
                (
                    "last_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="When it was last counted.",
                    ),
                ),
            ],
            options={"db_table": "jobreaper_totals"},
        ),
        # In two steps: rows that are there already belong to no trace, not to that of a migration.
        migrations.AddField(
            model_name="job",
            name="traceparent",
            field=models.TextField(
                blank=True,
                editable=False,
                help_text="The trace in which the job was made.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="traceparent",
            field=models.TextField(
                blank=True,
                default=jobreaper.tracecontext.current_traceparent,
                editable=False,
                help_text="The trace in which the job was made.",
                null=True,
            ),
        ),
    ]
