-- Reclaim: one batch of running jobs of a table without leases, whose last sign of life is older
-- than their type allows, goes back to the queue, or fails if the attempts are used up.
--
-- A type without a time to live is never reclaimed.
WITH
{verdicts},
reaped AS (
    UPDATE {table} AS job
       SET
           {attempt_count} = verdict.attempt_count - ({counts_reaps} AND NOT verdict.requeues)::int,
           {locked_by} = {no_locked_by},
           {claimed_at} = CASE WHEN verdict.requeues THEN NULL ELSE job.{claimed_at} END,
           {only_sign} = CASE WHEN verdict.requeues THEN NULL ELSE job.{only_sign} END,
           {lease_expires_at} = NULL,
           {deadline_at} = NULL,
           {dispatched_at} = NULL,
           {lease_epoch} = coalesce(job.{lease_epoch}, 0) + 1,
           {reap_count} = coalesce(job.{reap_count}, 0) + 1,
           {finished_at} = CASE WHEN verdict.requeues THEN NULL ELSE statement_timestamp() END,
           {fail_code} = CASE WHEN verdict.requeues THEN job.{fail_code} ELSE {stored_timeout} END,
           {fail_reason} = left(verdict.note, {longest_fail_reason}),
           {touched}
           {status} = {status_by_verdict}
      FROM verdict
     WHERE {is_verdicts_job}
    RETURNING verdict.*
),
happened (job_id, type, details) AS (
    SELECT reaped.job_id,
           CASE WHEN reaped.requeues THEN {reaper_requeued} ELSE {reaper_failed_timeout} END,
           jsonb_build_object(
               'reason', reaped.reason,
               'locked_by', reaped.locked_by,
               'stage', reaped.stage,
               'attempt', reaped.attempt_count,
               'claimed_at', to_char(reaped.claimed_at AT TIME ZONE 'UTC', {iso_utc}),
               'last_heartbeat_at', to_char(reaped.last_seen_at AT TIME ZONE 'UTC', {iso_utc}),
               'ttl_sec', extract(epoch FROM reaped.ttl)::float8,
               'overdue_ms', reaped.overdue_ms,
               'note', reaped.note,
               'reaper', %(reaper)s::text)
      FROM reaped
),
{event},
{counted}
SELECT {reaped_columns}
  FROM reaped
 WHERE {all_written}
