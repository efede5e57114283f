"""The tables become job tables.

Every new column is nullable or has a database default, so that no row is rewritten and no INSERT
from before fails; the indexes are built while the workers go on.
"""

from collections.abc import Iterator
from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import jobreaper.base

Columns = list[tuple[str, "models.Field[Any, Any]"]]


def new_columns() -> Columns:
    return [
        (
            "claimed_at",
            models.DateTimeField(
                blank=True, editable=False, help_text="When this attempt started.", null=True
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
            "dispatched_at",
            models.DateTimeField(
                blank=True, editable=False, help_text="When its last message was sent.", null=True
            ),
        ),
        (
            "expected_duration_ms",
            models.IntegerField(
                blank=True, help_text="Expected length of the work; lengthens the lease.", null=True
            ),
        ),
        (
            "fail_code",
            models.TextField(
                blank=True, editable=False, help_text="Why the last attempt ended badly.", null=True
            ),
        ),
        (
            "fail_reason",
            models.TextField(blank=True, editable=False, help_text="The same in words.", null=True),
        ),
        (
            "finished_at",
            models.DateTimeField(
                blank=True, editable=False, help_text="When the job reached its end.", null=True
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
            "lease_expires_at",
            models.DateTimeField(
                blank=True,
                editable=False,
                help_text="When the lease ends unless a heartbeat renews it.",
                null=True,
            ),
        ),
        (
            "locked_by",
            models.TextField(
                blank=True, editable=False, help_text="The worker that holds the lease.", null=True
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
            "next_earliest_run_at",
            models.DateTimeField(
                blank=True, help_text="Not before this time: backoff or a schedule.", null=True
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
    ]


def described_columns() -> Columns:
    return [
        (
            "attempt_count",
            models.IntegerField(
                db_default=0, default=0, editable=False, help_text="Attempts started so far."
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
            "stage",
            models.TextField(
                blank=True, help_text="The kind of work; picks the policy.", null=True
            ),
        ),
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
    ]


def indexes(table: str) -> list[models.Index]:
    return [
        jobreaper.base.LeaseIndex(
            condition=models.Q(("status", "processing")),
            fields=["status", "lease_expires_at"],
            name=f"idx_{table}_status_lease",
        ),
        jobreaper.base.LeaseIndex(
            condition=models.Q(("status", "queued")),
            fields=["next_earliest_run_at", "id"],
            name=f"idx_{table}_queued_due",
        ),
    ]


def operations(model: str, table: str) -> Iterator[Operation]:
    for name, field in new_columns():
        yield migrations.AddField(model, name, field)
    for name, field in described_columns():
        yield migrations.AlterField(model, name, field)
    for index in indexes(table):
        yield AddIndexConcurrently(model, index)


class Migration(migrations.Migration):
    # CREATE INDEX CONCURRENTLY runs in no transaction.
    atomic = False
    dependencies = [("media", "0001_before_jobreaper")]

    operations = [*operations("job", "jobs"), *operations("asrjob", "asr_jobs")]
