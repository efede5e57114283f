"""What adoption adds: a column for the heartbeat, and an index over the running jobs."""

from django.db import migrations


class Migration(migrations.Migration):
    # CREATE INDEX CONCURRENTLY runs in no transaction.
    atomic = False
    dependencies = [("documents", "0001_somebody_elses_table")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE executor_jobs ADD COLUMN IF NOT EXISTS heartbeat_at timestamptz",
            "ALTER TABLE executor_jobs DROP COLUMN heartbeat_at",
        ),
        migrations.RunSQL(
            "CREATE INDEX CONCURRENTLY IF NOT EXISTS executor_jobs_reclaim_idx"
            " ON executor_jobs (type, heartbeat_at, locked_at)"
            " WHERE status IN ('running', 'processing')",
            "DROP INDEX CONCURRENTLY IF EXISTS executor_jobs_reclaim_idx",
        ),
    ]
