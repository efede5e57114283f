-- Reap: one batch of expired leases goes back to the queue, or fails where no attempt is left.
WITH {verdicts},
{reaped},
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT reaped.id::text,
           jsonb_build_object(
               'type', CASE reaped.fail_code
                       WHEN {timeout} THEN {reaper_failed_timeout}
                       WHEN {poison} THEN {reaper_failed_poison}
                       WHEN {deadline} THEN {reaper_failed_deadline}
                       ELSE {reaper_requeued} END,
               'table', {table_name}::text,
               'details', jsonb_build_object(
                   'reason', reaped.reason,
                   'locked_by', reaped.locked_by,
                   'stage', reaped.stage,
                   'attempt', reaped.attempt_count,
                   'epoch', reaped.lease_epoch,
                   'lease_expires_at',
                       to_char(reaped.lease_expires_at AT TIME ZONE 'UTC', {iso_utc}),
                   'overdue_ms', reaped.overdue_ms,
                   'reaper', %(reaper)s::text,
                   'next_earliest_run_at', CASE WHEN reaped.requeues THEN
                       to_char(reaped.run_again_at AT TIME ZONE 'UTC', {iso_utc}) END),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM reaped
),
counted AS (
    INSERT INTO jobreaper_totals (name, "table", stage, count, microseconds)
    SELECT CASE WHEN requeues THEN {requeues} ELSE {failures} END, {table_name},
           coalesce(stage, ''), count(*), LEAST(coalesce(sum(overdue_ms), 0) * 1000, {largest})
      FROM reaped
     GROUP BY requeues, stage
)
SELECT id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
       CASE WHEN requeues THEN
           round(extract(epoch FROM run_again_at - statement_timestamp()) * 1000)::bigint END
  FROM reaped
