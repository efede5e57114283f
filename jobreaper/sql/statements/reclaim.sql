-- Reclaim: one batch of running jobs of a table without leases, whose last sign of life is older
-- than their type allows, goes back to the queue, or is failed where its attempts are used up.
--
-- A type without a time to live is never reclaimed.
WITH {stale},
reclaimed AS (
    UPDATE {table} AS job
       SET {reclaim_assignments}
      FROM verdict
     WHERE {is_verdicts_job}
    RETURNING verdict.*
),
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT reclaimed.job_id,
           jsonb_build_object(
               'type', CASE WHEN reclaimed.requeues THEN {reaper_requeued}
                            ELSE {reaper_failed_timeout} END,
               'table', {table_name}::text,
               'details', jsonb_build_object(
                   'reason', {lease_expired}::text,
                   'locked_by', reclaimed.locked_by,
                   'stage', reclaimed.stage,
                   'attempt', reclaimed.attempt_count,
                   'last_heartbeat_at',
                       to_char(reclaimed.last_seen_at AT TIME ZONE 'UTC', {iso_utc}),
                   'ttl_sec', extract(epoch FROM reclaimed.ttl)::float8,
                   'overdue_ms', reclaimed.overdue_ms,
                   'note', reclaimed.note,
                   'reaper', %(reaper)s::text),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM reclaimed
),
counted AS (
    INSERT INTO jobreaper_totals (name, "table", stage, count, microseconds)
    SELECT CASE WHEN requeues THEN {requeues} ELSE {failures} END, {table_name},
           coalesce(stage, ''), count(*), LEAST(coalesce(sum(overdue_ms), 0) * 1000, {largest})
      FROM reclaimed
     GROUP BY requeues, stage
)
SELECT {reclaimed_columns}
  FROM reclaimed
