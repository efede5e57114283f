-- Progress: what a job's function reports, carried by the heartbeat of its lease, and when a job that
-- reports nothing has stalled. Only for tables that have the columns.
--
-- A job has stalled if its lease ended because nothing was reported, and its worker was still heard of in
-- the second half of the time that it had. A worker that was not is silent, whatever it has reported. The
-- times are compared as seconds, because they may be infinite.

-- name: begins_unreported
-- What the last attempt has reported does not count for this one.
{progress} = NULL,
{progress_at} = NULL,
{stalls_at} = statement_timestamp() + policy.stall_after,


-- name: reported
-- What is new of what was reported under these leases: a report that says the same as the last one is
-- no progress. A process may have an older lease of the same job, which has another epoch.
reported AS MATERIALIZED (
    SELECT jsonb_object_agg(job.{id}::text, lease.progress::jsonb) AS by_job
      FROM unnest(%(ids)s::{id_type}[], %(epochs)s::bigint[], %(progress)s::text[])
           AS lease (id, epoch, progress)
      JOIN {table} AS job ON job.{id} = lease.id AND job.{lease_epoch} = lease.epoch
     WHERE lease.progress::jsonb IS DISTINCT FROM job.{progress}
       AND lease.progress IS NOT NULL
),


-- name: reported_of_job
(SELECT by_job FROM reported) -> job.{id}::text


-- name: takes_report
{progress} = coalesce({report}, job.{progress}),
{progress_at} = CASE WHEN {report} IS NULL THEN job.{progress_at} ELSE statement_timestamp() END,


-- name: stalls_after_report
CASE WHEN {report} IS NULL THEN job.{stalls_at} ELSE statement_timestamp() + policy.stall_after END


-- name: is_stalled
coalesce(job.{stalls_at} BETWEEN job.{claimed_at} AND job.{lease_expires_at}
         AND 2 * extract(epoch FROM job.{last_heartbeat_at})
             >= extract(epoch FROM job.{stalls_at})
                + extract(epoch FROM GREATEST(job.{progress_at}, job.{claimed_at})), false)


-- name: lost_progress
job.{progress} AS progress,
job.{progress_at} AS progress_at,


-- name: progress_details
'progress', reaped.progress,
'progress_at', to_char(reaped.progress_at AT TIME ZONE 'UTC', {iso_utc}),


-- name: checked_progress
-- Not negative, not NaN, and exact in every program that reads JSON.
IF {function}.done IS NULL OR NOT {function}.done BETWEEN 0 AND {largest_number}
   OR NOT {function}.total BETWEEN 0 AND {largest_number} THEN
    RAISE EXCEPTION 'done and total must be from 0 to 2^53, and done is not NULL'
        USING ERRCODE = 'invalid_parameter_value';
END IF;
