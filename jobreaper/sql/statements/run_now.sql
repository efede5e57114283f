-- An operator has queued jobs run now that are scheduled for later, or wait for their next attempt.
-- The epoch and the attempts stay as they are: nobody holds such a job.
WITH job_before AS MATERIALIZED (
    SELECT job.{id} AS id,
           job.{stage} AS stage,
           job.{attempt_count} AS attempt_count,
           job.{next_earliest_run_at} AS next_earliest_run_at
      FROM {table} AS job
     WHERE job.{id} = ANY (%(ids)s::{id_type}[])
       AND {is_queued}
       AND job.{next_earliest_run_at} > statement_timestamp()
     ORDER BY job.{id}
       FOR NO KEY UPDATE
),
changed AS (
    UPDATE {table} AS job
       SET {dispatched_at} = NULL,
           {touched}
           {next_earliest_run_at} = statement_timestamp()
      FROM job_before
     WHERE job.{id} = job_before.id
    RETURNING job_before.id
),
happened (job_id, type, details) AS (
    SELECT job_before.id::text,
           %(event)s::text,
           jsonb_build_object(
               'by', %(by)s::text,
               'reason', %(reason)s::text,
               'stage', job_before.stage,
               'attempt', job_before.attempt_count,
               'next_earliest_run_at',
                   CASE WHEN isfinite(job_before.next_earliest_run_at) THEN
                       to_char(job_before.next_earliest_run_at AT TIME ZONE 'UTC', {iso_utc}) END)
      FROM changed JOIN job_before USING (id)
),
{event}
SELECT id{key_as_read} FROM changed WHERE {all_written}
