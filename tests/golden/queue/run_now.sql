-- An operator has queued jobs run now that are scheduled for later, or wait for their next attempt.
-- The epoch and the attempts stay as they are: nobody holds such a job.
WITH job_before AS MATERIALIZED (
    SELECT job."id" AS id,
           job."stage" AS stage,
           job."attempt_count" AS attempt_count,
           job."next_earliest_run_at" AS next_earliest_run_at
      FROM "jobreaper_jobs" AS job
     WHERE job."id" = ANY (%(ids)s::uuid[])
       AND job."status" = 'queued'
       AND job."next_earliest_run_at" > statement_timestamp()
     ORDER BY job."id"
       FOR NO KEY UPDATE
),
changed AS (
    UPDATE "jobreaper_jobs" AS job
       SET "dispatched_at" = NULL,
           "updated_at" = statement_timestamp(),
           "next_earliest_run_at" = statement_timestamp()
      FROM job_before
     WHERE job."id" = job_before.id
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
                       to_char(job_before.next_earliest_run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END)
      FROM changed JOIN job_before USING (id)
),
event (job_id, data) AS (
    SELECT happened.job_id,
           jsonb_build_object(
               'type', happened.type,
               'table', 'jobreaper_jobs'::text,
               'details', happened.details,
               -- In a query of its own, it is written once for all events.
               'at', (SELECT to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
      FROM happened
),
-- A trigger may keep an event out. Nothing reads here whether it did: the change of the job counts.
recorded AS (
    INSERT INTO job_events (job_id, data)
    SELECT job_id, data FROM event
)
SELECT id FROM changed WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
                             -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
                             -- an error, as of any row that cannot be written.
                             (SELECT CASE WHEN count(*) = (SELECT count(*) FROM changed) THEN true
                                          ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM changed))::text
                                                || ' row(s)')::boolean END
                                FROM job_before)
