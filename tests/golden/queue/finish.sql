-- End an attempt: finish, fail or release it. If no row is returned, the lease was lost and nothing
-- was written.
WITH
-- The attempt before this statement ends it. Its worker knows how long it waited for its turn after
-- the claim.
attempt AS MATERIALIZED (
    SELECT job."id" AS id,
           job."locked_by" AS locked_by,
           job."stage" AS stage,
           coalesce(job."attempt_count"::int, 0) AS attempt_count,
           coalesce(job."max_attempts"::int, 3) AS max_attempts,
           job."lease_epoch" AS lease_epoch,
           job."claimed_at" AS claimed_at,
           job."org_id" AS "org_id",
           job."type" AS "type",
           CASE WHEN isfinite(job."next_earliest_run_at") AND isfinite(job."claimed_at") THEN
               GREATEST(extract(epoch FROM job."claimed_at" - job."next_earliest_run_at") * 1000, 0) END
               AS due_to_claim_ms,
           CASE WHEN isfinite(job."claimed_at") THEN
               round(GREATEST(
                   extract(epoch FROM statement_timestamp() - job."claimed_at") * 1000
                   - %(waited_ms)s::float8, 0))::bigint
               END AS duration_ms,
           %(waited_ms)s::float8 AS claim_to_start_ms
      FROM "jobreaper_jobs" AS job
     WHERE job."id" = %(id)s::uuid
       AND job."lease_epoch" = %(epoch)s
       AND job."locked_by"::text = %(worker)s
       AND job."status" = 'processing'
       AND NOT EXISTS (SELECT FROM jsonb_each_text(%(session)s::jsonb) AS own
                        WHERE own.value <> coalesce(current_setting(own.key, true), ''))
       FOR NO KEY UPDATE
),
ended AS (
    UPDATE "jobreaper_jobs" AS job
       SET "status" = 'success',
           "result" = coalesce(%(result)s::jsonb, job."result"),
           "finished_at" = statement_timestamp(),
           "fail_code" = NULL,
           "fail_reason" = NULL,
           "progress" = coalesce(%(report)s::jsonb, job."progress"),
           "progress_at" = CASE WHEN %(report)s::jsonb IS NULL THEN job."progress_at" ELSE statement_timestamp() END,
           "updated_at" = statement_timestamp(),
           "locked_by" = NULL,
           "claimed_at" = NULL,
           "lease_expires_at" = NULL,
           "deadline_at" = NULL,
           "stalls_at" = NULL,
           "dispatched_at" = NULL
     WHERE job."id" = ANY (ARRAY(SELECT id FROM attempt))
    RETURNING job."id"
),
-- Not from the rows updated: joined with the attempts, 500 jobs would cost 500 x 500 comparisons,
-- since the planner takes both for one row.
happened (job_id, type, details) AS (
    SELECT attempt.id::text,
           'job:finished'::text,
           jsonb_build_object(
               'locked_by', attempt.locked_by,
               'stage', attempt.stage,
               'attempt', attempt.attempt_count,
               'epoch', attempt.lease_epoch,
               'claimed_at', to_char(attempt.claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'org_id', attempt."org_id",
               'type', attempt."type",
               'queue_wait_ms', round(attempt.due_to_claim_ms + attempt.claim_to_start_ms)::bigint,
               'duration_ms', attempt.duration_ms)
      FROM attempt
     WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
           -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
           -- an error, as of any row that cannot be written.
           (SELECT CASE WHEN count(*) = (SELECT count(*) FROM ended) THEN true
                        ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM ended))::text
                              || ' row(s)')::boolean END
              FROM (SELECT DISTINCT id FROM attempt) AS job)
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
SELECT data::text FROM event
