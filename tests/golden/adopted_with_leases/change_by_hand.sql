-- An operator requeues, fails or cancels jobs. The epoch increases, so that a worker that is still
-- running one is told at its next heartbeat. A requeued job starts from scratch, with all its
-- attempts.
--
-- A CASE converts the target to the table's word. Its last branch is never used; it gives the words
-- the type of the column, which may be an enum, and the parameter remains a text.
WITH job_before AS MATERIALIZED (
    SELECT job."Number" AS id,
           job."State" AS status,
           job."kind"::text AS stage,
           job."worker" AS locked_by,
           job."tries" AS attempt_count,
           job."fence" AS lease_epoch
      FROM "office"."Errands" AS job
     WHERE job."Number" = ANY (%(ids)s::bigint[])
       AND job."State"::text = ANY (%(sources)s::text[])
       AND true
     ORDER BY job."Number"
       FOR NO KEY UPDATE
),
changed AS (
    UPDATE "office"."Errands" AS job
       SET "State" = CASE %(target)s WHEN 'waiting' THEN 'waiting'
                                    WHEN 'failed' THEN 'failed'
                                    WHEN 'canceled' THEN 'canceled'
                                    ELSE job."State" END,
           "fence" = coalesce(job."fence", 0) + 1,
           "tries" = CASE WHEN %(target)s = 'waiting' THEN 0 ELSE job."tries" END,
           "losses" = CASE WHEN %(target)s = 'waiting' THEN 0 ELSE job."losses" END,
           "not_before" = CASE WHEN %(target)s = 'waiting' THEN statement_timestamp()
                                         ELSE job."not_before" END,
           "ended" = CASE WHEN %(target)s = 'waiting' THEN NULL
                                ELSE statement_timestamp() END,
           "error_code" = CASE %(target)s WHEN 'waiting' THEN ''
                                         WHEN 'failed' THEN
                                             left(%(fail_code)s, 200)
                                         ELSE job."error_code" END,
           "error_text" = CASE %(target)s WHEN 'waiting' THEN ''
                                           WHEN 'failed' THEN
                                               left(coalesce(%(reason)s, ''),
                                                    2147483647)
                                           ELSE job."error_text" END,
           "worker" = '',
           "started" = NULL,
           "leased until" = NULL,
           "hard_end" = NULL,
           "sent" = NULL
      FROM job_before
     WHERE job."Number" = job_before.id
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
               'table', 'office.Errands'::text,
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
