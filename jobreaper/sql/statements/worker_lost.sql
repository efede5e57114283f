-- Worker lost: a process that is known to be dead held these leases. They are taken back at once.
WITH policies AS MATERIALIZED ({policies}),
lost AS MATERIALIZED (
    SELECT {lost_columns},
           statement_timestamp() AS ended_at,
           {worker_lost}::text AS cause,
           %(how)s::text AS fail_reason
      FROM {table} AS job
     WHERE {is_processing}
       AND job.{locked_by} = %(worker)s
     ORDER BY job.{id}
       FOR NO KEY UPDATE OF job
),
{verdict},
{reaped},
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT reaped.id::text,
           jsonb_build_object(
               'type', {job_worker_lost}::text,
               'table', {table_name}::text,
               'details', jsonb_build_object(
                   'reason', reaped.reason,
                   'how', reaped.fail_reason,
                   'outcome', CASE WHEN reaped.requeues THEN {queued} ELSE {failed} END,
                   'fail_code', reaped.fail_code,
                   'locked_by', reaped.locked_by,
                   'stage', reaped.stage,
                   'attempt', reaped.attempt_count,
                   'epoch', reaped.lease_epoch,
                   'reaper', %(reaper)s::text,
                   'next_earliest_run_at', CASE WHEN reaped.requeues THEN
                       to_char(reaped.run_again_at AT TIME ZONE 'UTC', {iso_utc}) END),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM reaped
),
counted AS (
    INSERT INTO jobreaper_totals (name, "table", stage, count)
    SELECT CASE WHEN requeues THEN {lost_and_requeued} ELSE {lost_and_failed} END, {table_name},
           coalesce(stage, ''), count(*)
      FROM reaped
     GROUP BY requeues, stage
)
SELECT id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
       CASE WHEN requeues THEN
           round(extract(epoch FROM run_again_at - statement_timestamp()) * 1000)::bigint END
  FROM reaped
