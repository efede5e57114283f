-- The jobs of a worker that is known to be dead.

-- name: worker_lost
-- Worker lost: take back at once the leases of a process that is known to be dead. The reason says
-- whether it had been told to stop.
WITH policies AS MATERIALIZED (
    {policies}
),
lost AS MATERIALIZED (
    SELECT {lost_columns},
           statement_timestamp() AS ended_at,
           %(reason)s::text AS cause,
           %(how)s::text AS fail_reason
      FROM {among} AS job
     WHERE {is_processing}
       AND job.{locked_by} = %(worker)s
     ORDER BY job.{id}
       FOR NO KEY UPDATE OF job
),
{verdict},
{reaped},
happened (job_id, type, details) AS (
    SELECT reaped.id::text,
           {job_worker_lost}::text,
           jsonb_build_object(
               'reason', reaped.reason,
               'how', reaped.fail_reason,
               'outcome', CASE WHEN reaped.requeues THEN {queued} ELSE {failed} END,
               'fail_code', reaped.fail_code,
               'locked_by', reaped.locked_by,
               'stage', reaped.stage,
               'attempt', reaped.attempt_count,
               'epoch', reaped.lease_epoch,
               'claimed_at', to_char(reaped.claimed_at AT TIME ZONE 'UTC', {iso_utc}),
               'last_heartbeat_at',
                   to_char(reaped.last_heartbeat_at AT TIME ZONE 'UTC', {iso_utc}),
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


-- name: held_by_worker
-- The jobs that a worker has, to take them back one by one.
SELECT job.{id} AS id
  FROM {table} AS job
 WHERE {is_processing}
   AND job.{locked_by} = %(worker)s
 ORDER BY job.{id}
