-- A pass over a table with leases.

-- name: reap
-- Reap: one batch of jobs with expired leases goes back to the queue, or fails if no attempt is
-- left.
WITH
{verdicts},
{reaped},
happened (job_id, type, details) AS (
    SELECT reaped.id::text,
           CASE reaped.fail_code
               WHEN {timeout} THEN {reaper_failed_timeout}
               WHEN {poison} THEN {reaper_failed_poison}
               WHEN {deadline} THEN {reaper_failed_deadline}
               WHEN {stalled} THEN {reaper_failed_stalled}
               ELSE {reaper_requeued} END,
           jsonb_build_object(
               'reason', reaped.reason,
               'locked_by', reaped.locked_by,
               'stage', reaped.stage,
               'attempt', reaped.attempt_count,
               'epoch', reaped.lease_epoch,
               'claimed_at', to_char(reaped.claimed_at AT TIME ZONE 'UTC', {iso_utc}),
               'last_heartbeat_at',
                   to_char(reaped.last_heartbeat_at AT TIME ZONE 'UTC', {iso_utc}),
               'lease_expires_at', to_char(reaped.lease_expires_at AT TIME ZONE 'UTC', {iso_utc}),
               'overdue_ms', reaped.overdue_ms,
               {progress_details}
               'reaper', %(reaper)s::text,
               'next_earliest_run_at', CASE WHEN reaped.requeues THEN
                   to_char(reaped.run_again_at AT TIME ZONE 'UTC', {iso_utc}) END)
      FROM reaped
),
{event},
{counted}
SELECT {reaped_columns}
  FROM reaped
 WHERE {all_written}


-- name: dry_run
-- Dry run of a pass: its verdicts, nothing locked and nothing written.
WITH
{verdicts}
SELECT {reaped_columns}
  FROM verdict
 ORDER BY {since}
