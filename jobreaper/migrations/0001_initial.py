"""The package's own tables. ``job_events`` is created or, where it is there, adopted."""

import django.db.models.fields.json
import django.db.models.functions.datetime
from django.db import migrations, models

import jobreaper.base
import jobreaper.ids
import jobreaper.models
import jobreaper.tracecontext
from jobreaper.sql import source


# fmt: off
class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Total",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.TextField(help_text="What is counted.")),
                ("table", models.TextField(help_text="The job table, empty where it is none of them.")),
                ("stage", models.TextField(db_default="", default="")),
                ("count", models.BigIntegerField(db_default=1, default=1)),
                ("microseconds", models.BigIntegerField(db_default=0, default=0, help_text="The durations of what was counted, added up.")),
                ("last_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), help_text="When it was last counted.")),
            ],
            options={"db_table": "jobreaper_totals"},
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                (
                    "status",
                    models.TextField(
                        choices=[("queued", "queued"), ("processing", "processing"), ("success", "success"), ("failed", "failed"), ("cancelled", "cancelled")],
                        db_default="queued",
                        default="queued",
                        editable=False,
                        help_text="Where the job is in its life.",
                    ),
                ),
                ("stage", models.TextField(blank=True, help_text="The kind of work; picks the policy.", null=True)),
                ("locked_by", models.TextField(blank=True, editable=False, help_text="The worker that holds the lease.", null=True)),
                ("claimed_at", models.DateTimeField(blank=True, editable=False, help_text="When this attempt started.", null=True)),
                ("lease_expires_at", models.DateTimeField(blank=True, editable=False, help_text="When the lease ends unless a heartbeat renews it.", null=True)),
                ("last_heartbeat_at", models.DateTimeField(blank=True, editable=False, help_text="The last sign of life; kept after the end, as evidence.", null=True)),
                ("lease_epoch", models.BigIntegerField(db_default=0, default=0, editable=False, help_text="The fencing token: goes up at every claim, reap and cancel, never down.")),
                ("attempt_count", models.IntegerField(db_default=0, default=0, editable=False, help_text="Attempts started so far.")),
                ("max_attempts", models.IntegerField(db_default=3, default=jobreaper.base.default_max_attempts, help_text="Attempts allowed; the job fails when they are used up.")),
                ("reap_count", models.IntegerField(db_default=0, default=0, editable=False, help_text="Attempts that lost their worker.")),
                ("next_earliest_run_at", models.DateTimeField(blank=True, editable=False, help_text="Not before this time: backoff or a schedule.", null=True)),
                ("expected_duration_ms", models.IntegerField(blank=True, help_text="Expected length of the work; lengthens the lease.", null=True)),
                ("deadline_at", models.DateTimeField(blank=True, editable=False, help_text="Hard end of this attempt, set at claim where the stage has a max_runtime.", null=True)),
                ("finished_at", models.DateTimeField(blank=True, editable=False, help_text="When the job reached its end.", null=True)),
                ("dispatched_at", models.DateTimeField(blank=True, editable=False, help_text="When its last message was sent.", null=True)),
                ("fail_code", models.TextField(blank=True, editable=False, help_text="Why the last attempt ended badly.", null=True)),
                ("fail_reason", models.TextField(blank=True, editable=False, help_text="The same in words.", null=True)),
                ("id", models.UUIDField(default=jobreaper.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("type", models.TextField(help_text="What to do; the handler is looked up by it.")),
                ("priority", models.SmallIntegerField(db_default=0, default=0, help_text="Jobs of a higher priority are claimed first.")),
                ("org_id", models.TextField(blank=True, help_text="Whose job it is.", null=True)),
                ("payload", models.JSONField(blank=True, db_default=models.Value({}, models.JSONField()), default=dict)),
                ("dedupe_key", models.TextField(blank=True, help_text="No two queued or processing jobs have the same; empty: never merged.", null=True)),
                ("traceparent", models.TextField(blank=True, default=jobreaper.tracecontext.current_traceparent, editable=False, help_text="The trace in which the job was made.", null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ("updated_at", models.DateTimeField(auto_now=True, db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "db_table": "jobreaper_jobs",
                "indexes": [
                    jobreaper.base.LeaseIndex(condition=models.Q(("finished_at__isnull", False)), fields=["status", "finished_at"], name="idx_jobreaper_jobs_finished"),
                    jobreaper.base.LeaseIndex(condition=models.Q(("status", "processing")), fields=["status", "lease_expires_at"], name="idx_jobreaper_jobs_status_lease"),
                    jobreaper.base.LeaseIndex(condition=models.Q(("status", "queued")), fields=["next_earliest_run_at", "id"], name="idx_jobreaper_jobs_queued_due"),
                    jobreaper.base.LeaseIndex(condition=models.Q(("status", "queued")), fields=["-priority", "next_earliest_run_at", "id"], name="idx_jobreaper_jobs_queued_priority"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        jobreaper.models.Digest("dedupe_key"), condition=models.Q(("dedupe_key__isnull", False), ("status__in", ["queued", "processing"])), name="uniq_jobreaper_jobs_dedupe"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="NamedStage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("table", models.TextField(help_text="The job table.")),
                ("stage", models.TextField()),
                ("place", models.SmallIntegerField(help_text="Which of the names of its table; none by a policy.", null=True)),
            ],
            options={
                "db_table": "jobreaper_stages",
                "constraints": [models.UniqueConstraint(fields=("table", "stage"), name="uniq_jobreaper_stages"), models.UniqueConstraint(fields=("table", "place"), name="uniq_jobreaper_places")],
            },
        ),
        migrations.CreateModel(
            name="RefusedRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("table", models.TextField(help_text="The job table's name.")),
                ("verb", models.TextField(help_text="What could not be done to it.")),
                ("key", models.TextField(help_text="The job's key.")),
                ("since", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), help_text="When it was first refused.")),
                ("error", models.TextField(help_text="Why, the last time.")),
                ("tries", models.IntegerField(db_default=1, default=1, help_text="How often it was refused.")),
                ("next_try_at", models.DateTimeField(help_text="When it is tried again.")),
            ],
            options={
                "db_table": "jobreaper_refused_rows",
                "verbose_name": "row that cannot be written",
                "verbose_name_plural": "rows that cannot be written",
                "constraints": [models.UniqueConstraint(fields=("table", "verb", "key"), name="uniq_jobreaper_refused_rows")],
            },
        ),
        migrations.CreateModel(
            name="Pause",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("table", models.TextField(help_text="The job table's name.")),
                ("name", models.TextField(help_text="The stage or the type that is paused.")),
                ("reason", models.TextField(blank=True, help_text="Why, for others to read.", null=True)),
                ("by", models.TextField(blank=True, help_text="Who paused it.", null=True)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={"db_table": "jobreaper_pauses", "constraints": [models.UniqueConstraint(fields=("table", "name"), name="uniq_jobreaper_pauses")]},
        ),
        migrations.CreateModel(
            name="ReaperPass",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("duration_ms", models.IntegerField(db_default=0, default=0)),
                (
                    "trigger",
                    models.TextField(
                        choices=[("beat", "beat"), ("command", "command"), ("admin", "admin"), ("sql", "sql"), ("tick", "tick"), ("python", "python")],
                        default="python",
                        help_text="Who asked for the pass.",
                    ),
                ),
                ("reaper", models.TextField(help_text="The process that ran it.")),
                ("machine", models.TextField(help_text="The machine that ran it, from its start to its end.", null=True)),
                ("machine_sec", models.FloatField(help_text="The machine's own clock at the start, in seconds.", null=True)),
                ("counts", models.JSONField(default=dict, help_text="For each table, how many jobs were requeued and failed.")),
                ("requeued", models.IntegerField(db_default=0, default=0)),
                ("failed", models.IntegerField(db_default=0, default=0)),
                ("held", models.BooleanField(db_default=False, default=False, help_text="Nothing was reaped, on purpose.")),
                ("held_reason", models.TextField(blank=True, null=True)),
                ("error", models.TextField(blank=True, null=True)),
            ],
            options={"verbose_name_plural": "reaper passes", "db_table": "jobreaper_passes", "indexes": [models.Index(fields=["started_at"], name="idx_jobreaper_passes_started")]},
        ),
        migrations.SeparateDatabaseAndState(
            # Nothing is dropped on the way back: the events are evidence, and the table may have
            # been somebody else's first.
            database_operations=[migrations.RunSQL(source("frozen/job_events"), migrations.RunSQL.noop)],
            state_operations=[
                migrations.CreateModel(
                    name="JobEvent",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("job_id", models.TextField()),
                        ("data", models.JSONField()),
                        ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                        ("type", models.GeneratedField(db_persist=True, expression=django.db.models.fields.json.KeyTextTransform("type", "data"), output_field=models.TextField(null=True))),
                        ("table", models.GeneratedField(db_persist=True, expression=django.db.models.fields.json.KeyTextTransform("table", "data"), output_field=models.TextField(null=True))),
                    ],
                    options={"db_table": "job_events", "indexes": [models.Index(fields=["job_id", "id"], name="idx_job_events_job"), models.Index(fields=["at"], name="idx_job_events_at")]},
                )
            ],
        ),
        migrations.RunSQL(source("frozen/metering"), "DROP VIEW IF EXISTS jobreaper_metering"),
        migrations.RunSQL(source("frozen/stage_is_type"), "DROP FUNCTION jobreaper_stage_is_type() CASCADE"),
    ]
