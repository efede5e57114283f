-- End an attempt: finish the job, give it back (release), or fail the attempt, which puts the job
-- back in the queue with backoff while attempts are left. False means that the lease was lost and
-- nothing was written.
CREATE OR REPLACE FUNCTION "public"."jobreaper_jobs_finish"(job_id uuid, worker text, epoch bigint DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = "pg_catalog", "pg_temp"
SET TimeZone = 'UTC'
SET DateStyle = 'ISO'
AS $body$
#variable_conflict use_column
DECLARE
    -- Without an epoch, the worker's name is the proof.
    held_epoch bigint := coalesce("jobreaper_jobs_finish".epoch, (
        SELECT job."lease_epoch"
          FROM "public"."jobreaper_jobs" AS job
         WHERE job."id" = "jobreaper_jobs_finish".job_id
           AND job."locked_by" = "jobreaper_jobs_finish".worker
           AND job."status" = 'processing'));
    written record;
BEGIN
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
                       - 0::float8, 0))::bigint
                   END AS duration_ms,
               0::float8 AS claim_to_start_ms
          FROM "public"."jobreaper_jobs" AS job
         WHERE job."id" = "jobreaper_jobs_finish".job_id::uuid
           AND job."lease_epoch" = held_epoch
           AND job."locked_by"::text = "jobreaper_jobs_finish".worker
           AND job."status" = 'processing'
           AND true
           FOR NO KEY UPDATE
    ),
    ended AS (
        UPDATE "public"."jobreaper_jobs" AS job
           SET "status" = 'success',
               "result" = coalesce(NULL::jsonb, job."result"),
               "finished_at" = statement_timestamp(),
               "fail_code" = NULL,
               "fail_reason" = NULL,
               "progress" = coalesce(NULL::jsonb, job."progress"),
               "progress_at" = CASE WHEN NULL::jsonb IS NULL THEN job."progress_at" ELSE statement_timestamp() END,
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
        INSERT INTO "public"."job_events" (job_id, data)
        SELECT job_id, data FROM event
    )
    SELECT data::text FROM event
    INTO written;
    IF FOUND THEN
        RETURN true;
    END IF;
    -- It is lost, whether this can be recorded or not. OTHERS does not catch a failed ASSERT.
    BEGIN
        -- Reject: record that a verb of a worker that lost its lease wrote nothing. In another session than
        -- the lease's, it wrote nothing for that reason.
        --
        -- After a lost connection, the worker cannot know whether its first try was committed. If it was,
        -- the event of that try says so, whoever has the job now, and nothing is rejected.
        WITH carried_out AS MATERIALIZED (
            SELECT event.data
              FROM "public"."job_events" AS event
             WHERE false
               AND event.job_id = ("jobreaper_jobs_finish".job_id::uuid)::text
               AND event."table" = 'jobreaper_jobs'
               AND event.type = ANY (NULL::text[])
               AND event.data -> 'details' ->> 'epoch' = (held_epoch::bigint)::text
               AND event.data -> 'details' ->> 'locked_by' = "jobreaper_jobs_finish".worker::text
             LIMIT 1
        ),
        present AS MATERIALIZED (
            SELECT job."status" AS status,
                   job."lease_epoch" AS lease_epoch,
                   job."locked_by" AS locked_by
              FROM "public"."jobreaper_jobs" AS job
             WHERE job."id" = "jobreaper_jobs_finish".job_id::uuid
        ),
        happened (job_id, type, details) AS (
            SELECT ("jobreaper_jobs_finish".job_id::uuid)::text,
                   'job:stale_write_rejected'::text,
                   jsonb_build_object(
                       'verb', 'finish'::text,
                       'locked_by', "jobreaper_jobs_finish".worker::text,
                       'stage', NULL::text,
                       'attempt', NULL::int,
                       'epoch', held_epoch::bigint,
                       'present_status', present.status,
                       'present_epoch', present.lease_epoch,
                       'present_locked_by', present.locked_by)
              FROM (SELECT) AS once
              LEFT JOIN present ON true
             WHERE NOT EXISTS (SELECT FROM carried_out)
               AND true
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
            INSERT INTO "public"."job_events" (job_id, data)
            SELECT job_id, data FROM event
        ),
        counted AS (
            INSERT INTO "public"."jobreaper_totals" (name, "table")
            SELECT 'stale_writes', 'jobreaper_jobs' FROM happened
        )
        SELECT present.status, present.lease_epoch, (SELECT data::text FROM carried_out), true
          FROM (SELECT) AS once
          LEFT JOIN present ON true
        INTO written;
    EXCEPTION WHEN OTHERS OR assert_failure THEN
        IF SQLSTATE IN ('25006', '25P03', '25P04', '40001', '40P01', '53300', '55P03', '57P01', '57P02', '57P03', '57P05') OR left(SQLSTATE, 2) IN ('53', '57', '58') THEN
            RAISE;
        END IF;
        RAISE WARNING 'a rejected write could not be recorded: % (%)', SQLERRM, SQLSTATE;
    END;
    RETURN false;
END
$body$
