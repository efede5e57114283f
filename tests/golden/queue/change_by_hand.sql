-- An operator requeues, fails or cancels jobs. The epoch increases, so that a worker that is still
-- running one is told at its next heartbeat. A requeued job starts from scratch, with all its
-- attempts.
--
-- A CASE converts the target to the table's word. Its last branch is never used; it gives the words
-- the type of the column, which may be an enum, and the parameter remains a text.
WITH job_before AS MATERIALIZED (
    SELECT job."id" AS id,
           job."status" AS status,
           job."stage" AS stage,
           job."locked_by" AS locked_by,
           job."attempt_count" AS attempt_count,
           job."lease_epoch" AS lease_epoch
      FROM "jobreaper_jobs" AS job
     WHERE job."id" = ANY (%(ids)s::uuid[])
       AND job."status"::text = ANY (%(sources)s::text[])
       AND -- Only one of the jobs with the same dedupe key may be queued or processing. A job that would be
           -- the second one is left as it is; of several in one statement, the newest is taken.
           (%(target)s <> 'queued'
            OR job."status" = 'processing'
            OR job."dedupe_key" IS NULL
            OR NOT EXISTS (
                   SELECT FROM "jobreaper_jobs" AS other
                    WHERE other."dedupe_key" IS NOT NULL
                      AND other."status" IN ('queued', 'processing')
                      AND sha256(decode(replace(other."dedupe_key"::text, E'\\', E'\\\\'), 'escape')) = sha256(decode(replace(job."dedupe_key"::text, E'\\', E'\\\\'), 'escape')))
               AND NOT EXISTS (
                   SELECT FROM "jobreaper_jobs" AS other
                    WHERE other."id" = ANY (%(ids)s::uuid[])
                      AND other."status" = ANY (%(sources)s::text[])
                      AND other."dedupe_key" = job."dedupe_key"
                      AND other."id" > job."id"))
     ORDER BY job."id"
       FOR NO KEY UPDATE
),
changed AS (
    UPDATE "jobreaper_jobs" AS job
       SET "status" = CASE %(target)s WHEN 'queued' THEN 'queued'
                                    WHEN 'failed' THEN 'failed'
                                    WHEN 'cancelled' THEN 'cancelled'
                                    ELSE job."status" END,
           "lease_epoch" = coalesce(job."lease_epoch", 0) + 1,
           "attempt_count" = CASE WHEN %(target)s = 'queued' THEN 0 ELSE job."attempt_count" END,
           "reap_count" = CASE WHEN %(target)s = 'queued' THEN 0 ELSE job."reap_count" END,
           "next_earliest_run_at" = CASE WHEN %(target)s = 'queued' THEN statement_timestamp()
                                         ELSE job."next_earliest_run_at" END,
           "finished_at" = CASE WHEN %(target)s = 'queued' THEN NULL
                                ELSE statement_timestamp() END,
           "fail_code" = CASE %(target)s WHEN 'queued' THEN NULL
                                         WHEN 'failed' THEN
                                             left(%(fail_code)s, 2147483647)
                                         ELSE job."fail_code" END,
           "fail_reason" = CASE %(target)s WHEN 'queued' THEN NULL
                                           WHEN 'failed' THEN
                                               left(coalesce(%(reason)s, NULL),
                                                    2147483647)
                                           ELSE job."fail_reason" END,
           "updated_at" = statement_timestamp(),
           "locked_by" = NULL,
           "claimed_at" = NULL,
           "lease_expires_at" = NULL,
           "deadline_at" = NULL,
           "stalls_at" = NULL,
           "dispatched_at" = NULL
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
               'from_status', job_before.status,
               'locked_by', job_before.locked_by,
               'stage', job_before.stage,
               'attempt', job_before.attempt_count,
               'epoch', job_before.lease_epoch)
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
