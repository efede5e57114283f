"""The package's own tables. ``job_events`` is created or, where it is there, adopted."""

import uuid

import django.db.models.fields.json
import django.db.models.functions.datetime
from django.db import migrations, models

import jobreaper.base
from jobreaper.sql import source


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Job",
            fields=[
                (
                    "status",
                    models.TextField(
                        choices=[
                            ("queued", "queued"),
                            ("processing", "processing"),
                            ("success", "success"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        db_default="queued",
                        default="queued",
                        help_text="Where the job is in its life.",
                    ),
                ),
                (
                    "stage",
                    models.TextField(
                        blank=True, help_text="The kind of work; picks the policy.", null=True
                    ),
                ),
                (
                    "locked_by",
                    models.TextField(
                        blank=True,
                        editable=False,
                        help_text="The worker that holds the lease.",
                        null=True,
                    ),
                ),
                (
                    "claimed_at",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="When this attempt started.",
                        null=True,
                    ),
                ),
                (
                    "lease_expires_at",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="When the lease ends unless a heartbeat renews it.",
                        null=True,
                    ),
                ),
                (
                    "last_heartbeat_at",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="The last sign of life; kept after the end, as evidence.",
                        null=True,
                    ),
                ),
                (
                    "lease_epoch",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="The fencing token: goes up at every claim, reap and cancel, never down.",
                    ),
                ),
                (
                    "attempt_count",
                    models.IntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="Attempts started so far.",
                    ),
                ),
                (
                    "max_attempts",
                    models.IntegerField(
                        db_default=3,
                        default=jobreaper.base.default_max_attempts,
                        help_text="Attempts allowed; the job fails when they are used up.",
                    ),
                ),
                (
                    "reap_count",
                    models.IntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="Attempts that lost their worker.",
                    ),
                ),
                (
                    "next_earliest_run_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="Not before this time: backoff or a schedule.",
                        null=True,
                    ),
                ),
                (
                    "expected_duration_ms",
                    models.IntegerField(
                        blank=True,
                        help_text="Expected length of the work; lengthens the lease.",
                        null=True,
                    ),
                ),
                (
                    "deadline_at",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="Hard end of this attempt, set at claim where the stage has a max_runtime.",
                        null=True,
                    ),
                ),
                (
                    "finished_at",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="When the job reached its end.",
                        null=True,
                    ),
                ),
                (
                    "dispatched_at",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="When its last message was sent.",
                        null=True,
                    ),
                ),
                (
                    "fail_code",
                    models.TextField(
                        blank=True,
                        editable=False,
                        help_text="Why the last attempt ended badly.",
                        null=True,
                    ),
                ),
                (
                    "fail_reason",
                    models.TextField(
                        blank=True, editable=False, help_text="The same in words.", null=True
                    ),
                ),
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("type", models.TextField(help_text="What to do; the handler is looked up by it.")),
                ("org_id", models.TextField(blank=True, help_text="Whose job it is.", null=True)),
                (
                    "payload",
                    models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict),
                ),
                ("dedupe_key", models.TextField(blank=True, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        auto_now=True, db_default=django.db.models.functions.datetime.Now()
                    ),
                ),
            ],
            options={
                "db_table": "jobreaper_jobs",
                "indexes": [
                    jobreaper.base.LeaseIndex(
                        condition=models.Q(("status", "processing")),
                        fields=["status", "lease_expires_at"],
                        name="idx_jobreaper_jobs_status_lease",
                    ),
                    jobreaper.base.LeaseIndex(
                        condition=models.Q(("status", "queued")),
                        fields=["next_earliest_run_at", "id"],
                        name="idx_jobreaper_jobs_queued_due",
                    ),
                ],
            },
        ),
        migrations.SeparateDatabaseAndState(
            # Nothing is dropped on the way back: the events are evidence, and the table may have
            # been somebody else's first.
            database_operations=[
                migrations.RunSQL(source("migrations/0001_job_events"), migrations.RunSQL.noop)
            ],
            state_operations=[
                migrations.CreateModel(
                    name="JobEvent",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("job_id", models.TextField()),
                        ("data", models.JSONField()),
                        (
                            "at",
                            models.DateTimeField(
                                db_default=django.db.models.functions.datetime.Now()
                            ),
                        ),
                        (
                            "type",
                            models.GeneratedField(
                                db_persist=True,
                                expression=django.db.models.fields.json.KeyTextTransform(
                                    "type", "data"
                                ),
                                output_field=models.TextField(null=True),
                            ),
                        ),
                        (
                            "table",
                            models.GeneratedField(
                                db_persist=True,
                                expression=django.db.models.fields.json.KeyTextTransform(
                                    "table", "data"
                                ),
                                output_field=models.TextField(null=True),
                            ),
                        ),
                    ],
                    options={
                        "db_table": "job_events",
                        "indexes": [
                            models.Index(fields=["job_id", "id"], name="idx_job_events_job"),
                            models.Index(fields=["at"], name="idx_job_events_at"),
                        ],
                    },
                ),
            ],
        ),
        migrations.CreateModel(
            name="ReaperPass",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "started_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("duration_ms", models.IntegerField(db_default=0, default=0)),
                (
                    "trigger",
                    models.TextField(
                        choices=[
                            ("beat", "beat"),
                            ("command", "command"),
                            ("admin", "admin"),
                            ("sql", "sql"),
                            ("python", "python"),
                        ],
                        default="python",
                        help_text="Who asked for the pass.",
                    ),
                ),
                ("reaper", models.TextField(help_text="The process that ran it.")),
                (
                    "counts",
                    models.JSONField(
                        default=dict,
                        help_text="For each table, how many jobs were requeued and failed.",
                    ),
                ),
                ("requeued", models.IntegerField(db_default=0, default=0)),
                ("failed", models.IntegerField(db_default=0, default=0)),
                (
                    "held",
                    models.BooleanField(
                        db_default=False, default=False, help_text="Nothing was reaped, on purpose."
                    ),
                ),
                ("held_reason", models.TextField(blank=True, null=True)),
                ("error", models.TextField(blank=True, null=True)),
            ],
            options={
                "verbose_name_plural": "reaper passes",
                "db_table": "jobreaper_passes",
                "indexes": [
                    models.Index(fields=["started_at"], name="idx_jobreaper_passes_started")
                ],
            },
        ),
    ]
