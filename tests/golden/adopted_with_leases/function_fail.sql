-- End an attempt: finish the job, give it back (release), or fail the attempt, which puts the job
-- back in the queue with backoff while attempts are left. False means that the lease was lost and
-- nothing was written.
CREATE OR REPLACE FUNCTION "office"."Errands_fail"(job_id bigint, worker text, epoch bigint, code text, reason text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = "pg_catalog", "pg_temp"
SET TimeZone = 'UTC'
SET DateStyle = 'ISO'
AS $body$
#variable_conflict use_column
DECLARE
    -- Without an epoch, the worker's name is the proof.
    held_epoch bigint := coalesce("Errands_fail".epoch, (
        SELECT job."fence"
          FROM "office"."Errands" AS job
         WHERE job."Number" = "Errands_fail".job_id
           AND job."worker" = "Errands_fail".worker
           AND job."State" IN ('running', 'finishing')));
    written record;
BEGIN
    -- End an attempt: finish, fail or release it. If no row is returned, the lease was lost and nothing
    -- was written.
    WITH
    policies AS MATERIALIZED (
        -- One row per stage; the default policy has the stage ''.
        SELECT policy.stage,
               policy.lease_sec,
               policy.sla_factor,
               policy.max_runtime_sec * interval '1 second' AS max_runtime,
               policy.stall_after_sec * interval '1 second' AS stall_after,
               policy.backoff_ms,
               policy.on_expiry,
               policy.max_reaps,
               coalesce(policy.ttl_sec, NULL::float8) * interval '1 second' AS ttl
          FROM "public"."jobreaper_policies"() AS policy
    ),
    -- The attempt before this statement ends it. Its worker knows how long it waited for its turn after
    -- the claim.
    attempt AS MATERIALIZED (
        SELECT job."Number" AS id,
               job."worker" AS locked_by,
               job."kind"::text AS stage,
               coalesce(job."tries"::int, 0) AS attempt_count,
               coalesce(job."tries_allowed"::int, 3) AS max_attempts,
               job."fence" AS lease_epoch,
               job."started" AS claimed_at,
               CASE WHEN isfinite(job."not_before") AND isfinite(job."started") THEN
                   GREATEST(extract(epoch FROM job."started" - job."not_before") * 1000, 0) END
                   AS due_to_claim_ms,
               CASE WHEN isfinite(job."started") THEN
                   round(GREATEST(
                       extract(epoch FROM statement_timestamp() - job."started") * 1000
                       - 0::float8, 0))::bigint
                   END AS duration_ms,
               0::float8 AS claim_to_start_ms
          FROM "office"."Errands" AS job
         WHERE job."Number" = "Errands_fail".job_id::bigint
           AND job."fence" = held_epoch
           AND job."worker"::text = "Errands_fail".worker
           AND job."State" IN ('running', 'finishing')
           AND true
           FOR NO KEY UPDATE
    ),
    -- Back to the queue with backoff while attempts are left and the error may be retried, otherwise
    -- failed. `= ANY (ARRAY(...))` makes the planner find the jobs by their keys.
    verdict AS MATERIALIZED (
        SELECT job.*,
               error.fail_code,
               error.fail_reason,
               error.exception,
               error.traceback,
               true AND job.attempt_count < job.max_attempts AS requeues,
               statement_timestamp() + coalesce(make_interval(secs => NULL::float8), policy.backoff_ms[LEAST(GREATEST(job.attempt_count, 1), cardinality(policy.backoff_ms))]
                                                                                          * interval '1 millisecond')
                   AS run_again_at
          FROM attempt AS job
          JOIN (SELECT "Errands_fail".code::text AS fail_code, "Errands_fail".reason::text AS fail_reason,
                       NULL::text AS exception, NULL::text AS traceback) AS error
                   ON true
          JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
    ),
    failed AS (
        UPDATE "office"."Errands" AS job
           SET "State" = -- The last branch is never used. It gives the words the type of the column, which may be an enum.
                         CASE WHEN verdict.requeues THEN 'waiting'
                              WHEN NOT verdict.requeues THEN 'failed'
                              ELSE job."State" END,
               "ended" = CASE WHEN verdict.requeues THEN NULL ELSE statement_timestamp() END,
               "not_before" = CASE WHEN verdict.requeues THEN verdict.run_again_at
                                             ELSE job."not_before" END,
               "error_code" = left(verdict.fail_code, 200),
               "error_text" = left(coalesce(verdict.fail_reason, ''),
                                    2147483647),
               "worker" = '',
               "started" = NULL,
               "leased until" = NULL,
               "hard_end" = NULL,
               "sent" = NULL
          FROM verdict
         WHERE job."Number" = verdict.id
           AND job."Number" = ANY (ARRAY(SELECT id FROM verdict))
        RETURNING verdict.*, job."error_code" AS written_code, job."error_text" AS written_reason
    ),
    happened (job_id, type, details) AS (
        SELECT attempt.id::text,
               CASE WHEN attempt.requeues THEN 'job:retried' ELSE 'job:failed' END,
               jsonb_build_object(
                   'locked_by', attempt.locked_by,
                   'stage', attempt.stage,
                   'attempt', attempt.attempt_count,
                   'epoch', attempt.lease_epoch,
                   'claimed_at', to_char(attempt.claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                   'queue_wait_ms', round(attempt.due_to_claim_ms + attempt.claim_to_start_ms)::bigint,
                   'duration_ms', attempt.duration_ms,
                   'fail_code', attempt.written_code,
                   'fail_reason', attempt.written_reason,
                   'exception', attempt.exception,
                   'traceback', attempt.traceback,
                   'next_earliest_run_at', CASE WHEN attempt.requeues THEN
                       to_char(attempt.run_again_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END)
          FROM failed AS attempt
         WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
               -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
               -- an error, as of any row that cannot be written.
               (SELECT CASE WHEN count(*) = (SELECT count(*) FROM failed) THEN true
                            ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM failed))::text
                                  || ' row(s)')::boolean END
                  FROM (SELECT DISTINCT id FROM verdict) AS job)
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
               AND event.job_id = ("Errands_fail".job_id::bigint)::text
               AND event."table" = 'office.Errands'
               AND event.type = ANY (NULL::text[])
               AND event.data -> 'details' ->> 'epoch' = (held_epoch::bigint)::text
               AND event.data -> 'details' ->> 'locked_by' = "Errands_fail".worker::text
             LIMIT 1
        ),
        present AS MATERIALIZED (
            SELECT job."State" AS status,
                   job."fence" AS lease_epoch,
                   job."worker" AS locked_by
              FROM "office"."Errands" AS job
             WHERE job."Number" = "Errands_fail".job_id::bigint
        ),
        happened (job_id, type, details) AS (
            SELECT ("Errands_fail".job_id::bigint)::text,
                   'job:stale_write_rejected'::text,
                   jsonb_build_object(
                       'verb', 'fail'::text,
                       'locked_by', "Errands_fail".worker::text,
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
                       'table', 'office.Errands'::text,
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
            SELECT 'stale_writes', 'office.Errands' FROM happened
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
