-- Take the leases of at most n due jobs, or the lease of the job job_id, and return the jobs. A job
-- that cannot be written is left out and remembered. If it is the job job_id, its error is raised.
CREATE OR REPLACE FUNCTION "public"."jobreaper_jobs_claim"(
    worker text, n int DEFAULT 1, stages text[] DEFAULT NULL, job_id uuid DEFAULT NULL)
RETURNS SETOF "public"."jobreaper_jobs"
LANGUAGE plpgsql VOLATILE
SET search_path = "pg_catalog", "pg_temp"
SET TimeZone = 'UTC'
SET DateStyle = 'ISO'
AS $body$
#variable_conflict use_column
<<this_call>>
DECLARE
    -- Their names differ from the statements' names of rows: otherwise, a missing column would be
    -- looked for in them.
    taken record;
    candidate record;
    said text;
    began timestamptz := clock_timestamp();
    most int := "jobreaper_jobs_claim".n;
    deferred text := -- The constraint triggers of the table and of its events that would refuse a row only at the COMMIT,
                     -- which would undo everything. Not the foreign keys, to whose columns nothing is written.
                     (SELECT string_agg(format('%I.%I', space.nspname, "check".conname), ', ')
                        FROM pg_constraint AS "check"
                        JOIN pg_namespace AS space ON space.oid = "check".connamespace
                       WHERE "check".conrelid IN ('"public"."jobreaper_jobs"'::regclass, '"public"."job_events"'::regclass)
                         AND "check".contype = 't'
                         AND "check".condeferred);
    -- For the jobs that are tried one by one.
    has_more boolean := true;
    tried uuid[] := '{}';
    refused text[] := '{}';
    refusals text[] := '{}';
BEGIN
    -- Claims of stages with a max_running run one at a time, so that the next one counts the jobs of
    -- this one. A worker that is frozen in between loses its session, and the lock with it.
    SELECT CASE WHEN true THEN '' ELSE
               set_config('lock_timeout', '', true)
               || set_config('idle_in_transaction_session_timeout', '', true) END,
           pg_advisory_xact_lock(hashtext('jobreaper claims'), hashtext('jobreaper_jobs'))
    INTO taken;
    IF deferred IS NULL OR "jobreaper_jobs_claim".job_id IS NOT NULL THEN
        LOOP
            BEGIN
                RETURN QUERY -- Claim: take the lease of one job by its id, or of the next due jobs. The first heartbeat is a few
                             -- microseconds before the claim, which is the claim's mark: see retake.sql.
                             WITH policies AS MATERIALIZED (
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
                             -- How many more jobs of each limited stage and queue may run, for the requested stages. A job whose
                             -- lease ran out does not count. Counted only up to the limit.
                             slots AS MATERIALIZED (
                                 SELECT limits.stage,
                                        limits.queue,
                                        limits.max_running - (
                                            SELECT count(*)
                                              FROM (SELECT 1
                                                      FROM "public"."jobreaper_jobs" AS job
                                                     WHERE (job."stage" = limits.stage OR job."queue"::text = limits.queue)
                                                       AND job."status" = 'processing'
                                                       AND job."lease_expires_at" >= statement_timestamp()
                                                    LIMIT limits.max_running) AS job) AS free
                                   FROM jsonb_to_recordset('[{"stage": "render", "max_running": 2}]'::jsonb) AS limits (
                                        stage text, queue text, max_running int)
                                  WHERE ("jobreaper_jobs_claim".stages::text[] IS NULL
                                         OR limits.stage IS NULL
                                         OR limits.stage = ANY ("jobreaper_jobs_claim".stages::text[]))
                                    AND ("jobreaper_jobs_claim".job_id::uuid IS NULL
                                         OR EXISTS (SELECT FROM "public"."jobreaper_jobs" AS job
                                                     WHERE job."id" = "jobreaper_jobs_claim".job_id::uuid AND (job."stage" = limits.stage OR job."queue"::text = limits.queue)))
                             ),
                             -- A message that finds its stage or queue full is unmarked, so that another one can be sent.
                             sent_in_vain AS (
                                 UPDATE "public"."jobreaper_jobs" AS job
                                    SET "dispatched_at" = NULL
                                  WHERE job."id" = "jobreaper_jobs_claim".job_id::uuid
                                    AND job."status" = 'queued'
                                    AND (job."stage" = ANY (ARRAY(SELECT stage FROM slots WHERE free <= 0))
                                        OR job."queue"::text = ANY (ARRAY(SELECT queue FROM slots WHERE free <= 0)))
                             ),
                             -- The next due jobs, highest priority first; within a priority as in due.sql. Each priority has its
                             -- own range in the index, which is read only while more jobs are needed: a single ORDER BY over all
                             -- of them would read every job of a higher priority that is scheduled for the future. As in
                             -- due.sql, nothing is ordered only by id. The last step finds no lower priority: NULL, which stands
                             -- for the jobs without a priority.
                             -- Read once, and not for each condition that needs it.
                             left_out AS MATERIALIZED (
                                 SELECT ARRAY(SELECT name FROM "public"."jobreaper_pauses" WHERE "table" = 'jobreaper_jobs')::text[] AS paused,
                                        -- They are tried again, with the others, once their time has come.
                                        ARRAY(SELECT key
                                                FROM "public"."jobreaper_refused_rows"
                                               WHERE "table" = 'jobreaper_jobs'
                                                 AND verb = 'claim'
                                                 AND next_try_at > statement_timestamp()) AS refused
                             ),
                             named AS MATERIALIZED (
                                 SELECT job."id" AS id
                                   FROM "public"."jobreaper_jobs" AS job
                                  WHERE job."id" = "jobreaper_jobs_claim".job_id::uuid
                                    AND job."status" = 'queued'
                                    AND (job."next_earliest_run_at" IS NULL
                                         OR job."next_earliest_run_at" <= statement_timestamp())
                                    AND ("jobreaper_jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobreaper_jobs_claim".stages::text[]))
                                        AND (NULL::text[] IS NULL OR job."type"::text = ANY (NULL::text[]))
                                        AND (NULL::text[] IS NULL OR job."queue"::text = ANY (NULL::text[]))
                                        AND coalesce(job."stage", '') <> ALL (ARRAY(
                                            SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))
                                        AND coalesce(job."queue"::text, 'default') <> ALL (ARRAY(
                                            SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))
                                        AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                        AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                        AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                        AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                                    FOR NO KEY UPDATE SKIP LOCKED
                             ),
                             next AS MATERIALIZED (
                                 WITH RECURSIVE present (priority) AS (
                                     SELECT (SELECT job."priority"
                                               FROM "public"."jobreaper_jobs" AS job
                                              WHERE job."status" = 'queued'
                                                AND job."priority" IS NOT NULL
                                              ORDER BY job."priority" DESC
                                              LIMIT 1)
                                      UNION ALL
                                     SELECT (SELECT job."priority"
                                               FROM "public"."jobreaper_jobs" AS job
                                              WHERE job."status" = 'queued'
                                                AND job."priority" < present.priority
                                              ORDER BY job."priority" DESC
                                              LIMIT 1)
                                       FROM present
                                      WHERE present.priority IS NOT NULL
                                 )
                                 SELECT of_priority.*
                                   FROM present
                                  CROSS JOIN LATERAL (
                                        -- All have the same priority. It is in the ORDER BY because otherwise the index would not serve
                                        -- NULL.
                                        SELECT *
                                          FROM (SELECT job."id" AS id
                                                  FROM "public"."jobreaper_jobs" AS job
                                                 WHERE job."status" = 'queued'
                                                   AND job."priority" = present.priority
                                                   AND job."next_earliest_run_at" <= statement_timestamp()
                                                   AND ("jobreaper_jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobreaper_jobs_claim".stages::text[]))
                                                       AND (NULL::text[] IS NULL OR job."type"::text = ANY (NULL::text[]))
                                                       AND (NULL::text[] IS NULL OR job."queue"::text = ANY (NULL::text[]))
                                                       AND coalesce(job."stage", '') <> ALL (ARRAY(
                                                           SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))
                                                       AND coalesce(job."queue"::text, 'default') <> ALL (ARRAY(
                                                           SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))
                                                       AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                       AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                       AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                       AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                                                 ORDER BY job."priority" DESC, job."next_earliest_run_at", job."id"
                                                 LIMIT this_call.most
                                                   FOR NO KEY UPDATE SKIP LOCKED) AS timed
                                         UNION ALL
                                        SELECT *
                                          FROM (SELECT job."id" AS id
                                                  FROM "public"."jobreaper_jobs" AS job
                                                 WHERE job."status" = 'queued'
                                                   AND job."priority" = present.priority
                                                   AND job."next_earliest_run_at" IS NULL
                                                   AND ("jobreaper_jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobreaper_jobs_claim".stages::text[]))
                                                       AND (NULL::text[] IS NULL OR job."type"::text = ANY (NULL::text[]))
                                                       AND (NULL::text[] IS NULL OR job."queue"::text = ANY (NULL::text[]))
                                                       AND coalesce(job."stage", '') <> ALL (ARRAY(
                                                           SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))
                                                       AND coalesce(job."queue"::text, 'default') <> ALL (ARRAY(
                                                           SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))
                                                       AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                       AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                       AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                       AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                                                 ORDER BY job."priority" DESC, job."next_earliest_run_at", job."id"
                                                 LIMIT this_call.most
                                                   FOR NO KEY UPDATE SKIP LOCKED) AS untimed
                                        ) AS of_priority
                                  WHERE "jobreaper_jobs_claim".job_id::uuid IS NULL
                                  LIMIT this_call.most
                             ),
                             due_or_more AS (
                                 SELECT id FROM named UNION ALL
                                 SELECT id FROM next
                             ),
                             due AS (
                                 SELECT ranked.id
                                   FROM (SELECT job."id" AS id,
                                                of_stage.free AS free_in_stage,
                                                of_queue.free AS free_in_queue,
                                                row_number() OVER (
                                                    PARTITION BY job."stage"
                                                    ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id") AS in_stage,
                                                row_number() OVER (
                                                    PARTITION BY job."queue"::text
                                                    ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id") AS in_queue
                                           FROM "public"."jobreaper_jobs" AS job
                                           LEFT JOIN slots AS of_stage ON of_stage.stage = job."stage"
                                           LEFT JOIN slots AS of_queue ON of_queue.queue = job."queue"::text
                                          WHERE job."id" = ANY (ARRAY(SELECT id FROM due_or_more))) AS ranked
                                  WHERE (ranked.free_in_stage IS NULL OR ranked.in_stage <= ranked.free_in_stage)
                                    AND (ranked.free_in_queue IS NULL OR ranked.in_queue <= ranked.free_in_queue)
                             ),
                             claimed AS (
                                 UPDATE "public"."jobreaper_jobs" AS job
                                    SET "status" = 'processing',
                                        "updated_at" = statement_timestamp(),
                                        -- What the last attempt has reported does not count for this one.
                                        "progress" = NULL,
                                        "progress_at" = NULL,
                                        "stalls_at" = statement_timestamp() + policy.stall_after,
                                        "locked_by" = "jobreaper_jobs_claim".worker,
                                        "claimed_at" = statement_timestamp(),
                                        "last_heartbeat_at" = statement_timestamp()
                                            - 0 * interval '1 microsecond',
                                        "deadline_at" = statement_timestamp() + policy.max_runtime,
                                        "lease_expires_at" = GREATEST('epoch', LEAST(
                                                                 statement_timestamp()
                                                                 + make_interval(secs => LEAST(
                                                                       GREATEST(policy.lease_sec,
                                                                                coalesce(job."expected_duration_ms", 0) / 1000.0 * policy.sla_factor),
                                                                       31622400)),
                                                                 statement_timestamp() + policy.max_runtime,
                                                                 statement_timestamp() + policy.stall_after)),
                                        "attempt_count" = coalesce(job."attempt_count", 0) + 1,
                                        "lease_epoch" = coalesce(job."lease_epoch", 0) + 1
                                   FROM policies AS policy
                                  WHERE job."id" = ANY (ARRAY(SELECT id FROM due))
                                    AND policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
                                 RETURNING job.*
                             )
                             SELECT job.*
                               FROM claimed AS job
                              WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
                                    -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
                                    -- an error, as of any row that cannot be written.
                                    (SELECT CASE WHEN count(*) = (SELECT count(*) FROM claimed) THEN true
                                                 ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM claimed))::text
                                                       || ' row(s)')::boolean END
                                       FROM due)
                              ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id";
                IF most = "jobreaper_jobs_claim".n THEN
                    RETURN;
                END IF;
                EXIT;
            -- OTHERS does not catch a failed ASSERT in a trigger.
            EXCEPTION WHEN OTHERS OR assert_failure THEN
                -- If the table refuses even a claim of no rows, the problem is the table itself.
                IF most <= 0 OR "jobreaper_jobs_claim".job_id IS NOT NULL OR SQLSTATE IN ('25006', '25P03', '25P04', '40001', '40P01', '53300', '55P03', '57P01', '57P02', '57P03', '57P05') OR left(SQLSTATE, 2) IN ('53', '57', '58') THEN
                    RAISE;
                END IF;
                most := 0;
            END;
        END LOOP;
        most := "jobreaper_jobs_claim".n;
    END IF;
    WHILE most > 0 AND has_more
        AND clock_timestamp() < began + 2.0 * interval '1 second'
    LOOP
        has_more := false;
        -- Each candidate is tried alone, so that one that cannot be written does not stop the others.
        FOR candidate IN
            -- One by one: the jobs that a claim or a dispatch would take and that were not tried yet, in no
            -- order.
            WITH
            -- How many more jobs of each limited stage and queue may run, for the requested stages. A job whose
            -- lease ran out does not count. Counted only up to the limit.
            slots AS MATERIALIZED (
                SELECT limits.stage,
                       limits.queue,
                       limits.max_running - (
                           SELECT count(*)
                             FROM (SELECT 1
                                     FROM "public"."jobreaper_jobs" AS job
                                    WHERE (job."stage" = limits.stage OR job."queue"::text = limits.queue)
                                      AND job."status" = 'processing'
                                      AND job."lease_expires_at" >= statement_timestamp()
                                   LIMIT limits.max_running) AS job) AS free
                  FROM jsonb_to_recordset('[{"stage": "render", "max_running": 2}]'::jsonb) AS limits (
                       stage text, queue text, max_running int)
                 WHERE ("jobreaper_jobs_claim".stages::text[] IS NULL
                        OR limits.stage IS NULL
                        OR limits.stage = ANY ("jobreaper_jobs_claim".stages::text[]))
                   AND ("jobreaper_jobs_claim".job_id::uuid IS NULL
                        OR EXISTS (SELECT FROM "public"."jobreaper_jobs" AS job
                                    WHERE job."id" = "jobreaper_jobs_claim".job_id::uuid AND (job."stage" = limits.stage OR job."queue"::text = limits.queue)))
            ),
            -- A message that finds its stage or queue full is unmarked, so that another one can be sent.
            sent_in_vain AS (
                UPDATE "public"."jobreaper_jobs" AS job
                   SET "dispatched_at" = NULL
                 WHERE job."id" = "jobreaper_jobs_claim".job_id::uuid
                   AND job."status" = 'queued'
                   AND (job."stage" = ANY (ARRAY(SELECT stage FROM slots WHERE free <= 0))
                       OR job."queue"::text = ANY (ARRAY(SELECT queue FROM slots WHERE free <= 0)))
            ),
            -- The next due jobs, highest priority first; within a priority as in due.sql. Each priority has its
            -- own range in the index, which is read only while more jobs are needed: a single ORDER BY over all
            -- of them would read every job of a higher priority that is scheduled for the future. As in
            -- due.sql, nothing is ordered only by id. The last step finds no lower priority: NULL, which stands
            -- for the jobs without a priority.
            -- Read once, and not for each condition that needs it.
            left_out AS MATERIALIZED (
                SELECT ARRAY(SELECT name FROM "public"."jobreaper_pauses" WHERE "table" = 'jobreaper_jobs')::text[] AS paused,
                       -- They are tried again, with the others, once their time has come.
                       ARRAY(SELECT key
                               FROM "public"."jobreaper_refused_rows"
                              WHERE "table" = 'jobreaper_jobs'
                                AND verb = 'claim'
                                AND next_try_at > statement_timestamp()) AS refused
            ),
            named AS MATERIALIZED (
                SELECT job."id" AS id
                  FROM "public"."jobreaper_jobs" AS job
                 WHERE job."id" = "jobreaper_jobs_claim".job_id::uuid
                   AND job."status" = 'queued'
                   AND (job."next_earliest_run_at" IS NULL
                        OR job."next_earliest_run_at" <= statement_timestamp())
                   AND job."id" <> ALL (this_call.tried::uuid[])
                       AND ("jobreaper_jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobreaper_jobs_claim".stages::text[]))
                       AND (NULL::text[] IS NULL OR job."type"::text = ANY (NULL::text[]))
                       AND (NULL::text[] IS NULL OR job."queue"::text = ANY (NULL::text[]))
                       AND coalesce(job."stage", '') <> ALL (ARRAY(
                           SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))
                       AND coalesce(job."queue"::text, 'default') <> ALL (ARRAY(
                           SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))
                       AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                       AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                       AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                       AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                   FOR NO KEY UPDATE SKIP LOCKED
            ),
            next AS MATERIALIZED (
                WITH RECURSIVE present (priority) AS (
                    SELECT (SELECT job."priority"
                              FROM "public"."jobreaper_jobs" AS job
                             WHERE job."status" = 'queued'
                               AND job."priority" IS NOT NULL
                             ORDER BY job."priority" DESC
                             LIMIT 1)
                     UNION ALL
                    SELECT (SELECT job."priority"
                              FROM "public"."jobreaper_jobs" AS job
                             WHERE job."status" = 'queued'
                               AND job."priority" < present.priority
                             ORDER BY job."priority" DESC
                             LIMIT 1)
                      FROM present
                     WHERE present.priority IS NOT NULL
                )
                SELECT of_priority.*
                  FROM present
                 CROSS JOIN LATERAL (
                       -- All have the same priority. It is in the ORDER BY because otherwise the index would not serve
                       -- NULL.
                       SELECT *
                         FROM (SELECT job."id" AS id
                                 FROM "public"."jobreaper_jobs" AS job
                                WHERE job."status" = 'queued'
                                  AND job."priority" = present.priority
                                  AND job."next_earliest_run_at" <= statement_timestamp()
                                  AND job."id" <> ALL (this_call.tried::uuid[])
                                      AND ("jobreaper_jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobreaper_jobs_claim".stages::text[]))
                                      AND (NULL::text[] IS NULL OR job."type"::text = ANY (NULL::text[]))
                                      AND (NULL::text[] IS NULL OR job."queue"::text = ANY (NULL::text[]))
                                      AND coalesce(job."stage", '') <> ALL (ARRAY(
                                          SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))
                                      AND coalesce(job."queue"::text, 'default') <> ALL (ARRAY(
                                          SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))
                                      AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                      AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                      AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                      AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                                ORDER BY job."priority" DESC, job."next_earliest_run_at", job."id"
                                LIMIT this_call.most
                                  FOR NO KEY UPDATE SKIP LOCKED) AS timed
                        UNION ALL
                       SELECT *
                         FROM (SELECT job."id" AS id
                                 FROM "public"."jobreaper_jobs" AS job
                                WHERE job."status" = 'queued'
                                  AND job."priority" = present.priority
                                  AND job."next_earliest_run_at" IS NULL
                                  AND job."id" <> ALL (this_call.tried::uuid[])
                                      AND ("jobreaper_jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobreaper_jobs_claim".stages::text[]))
                                      AND (NULL::text[] IS NULL OR job."type"::text = ANY (NULL::text[]))
                                      AND (NULL::text[] IS NULL OR job."queue"::text = ANY (NULL::text[]))
                                      AND coalesce(job."stage", '') <> ALL (ARRAY(
                                          SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))
                                      AND coalesce(job."queue"::text, 'default') <> ALL (ARRAY(
                                          SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))
                                      AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                      AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                      AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                      AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                                ORDER BY job."priority" DESC, job."next_earliest_run_at", job."id"
                                LIMIT this_call.most
                                  FOR NO KEY UPDATE SKIP LOCKED) AS untimed
                       ) AS of_priority
                 WHERE "jobreaper_jobs_claim".job_id::uuid IS NULL
                 LIMIT this_call.most
            ),
            due_or_more AS (
                SELECT id FROM named UNION ALL
                SELECT id FROM next
            ),
            due AS (
                SELECT ranked.id
                  FROM (SELECT job."id" AS id,
                               of_stage.free AS free_in_stage,
                               of_queue.free AS free_in_queue,
                               row_number() OVER (
                                   PARTITION BY job."stage"
                                   ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id") AS in_stage,
                               row_number() OVER (
                                   PARTITION BY job."queue"::text
                                   ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id") AS in_queue
                          FROM "public"."jobreaper_jobs" AS job
                          LEFT JOIN slots AS of_stage ON of_stage.stage = job."stage"
                          LEFT JOIN slots AS of_queue ON of_queue.queue = job."queue"::text
                         WHERE job."id" = ANY (ARRAY(SELECT id FROM due_or_more))) AS ranked
                 WHERE (ranked.free_in_stage IS NULL OR ranked.in_stage <= ranked.free_in_stage)
                   AND (ranked.free_in_queue IS NULL OR ranked.in_queue <= ranked.free_in_queue)
            )
            SELECT id FROM due
        LOOP
            BEGIN
                -- Claim: take the lease of one job by its id, or of the next due jobs. The first heartbeat is a few
                -- microseconds before the claim, which is the claim's mark: see retake.sql.
                WITH policies AS MATERIALIZED (
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
                -- How many more jobs of each limited stage and queue may run, for the requested stages. A job whose
                -- lease ran out does not count. Counted only up to the limit.
                slots AS MATERIALIZED (
                    SELECT limits.stage,
                           limits.queue,
                           limits.max_running - (
                               SELECT count(*)
                                 FROM (SELECT 1
                                         FROM "public"."jobreaper_jobs" AS job
                                        WHERE (job."stage" = limits.stage OR job."queue"::text = limits.queue)
                                          AND job."status" = 'processing'
                                          AND job."lease_expires_at" >= statement_timestamp()
                                       LIMIT limits.max_running) AS job) AS free
                      FROM jsonb_to_recordset('[{"stage": "render", "max_running": 2}]'::jsonb) AS limits (
                           stage text, queue text, max_running int)
                     WHERE ("jobreaper_jobs_claim".stages::text[] IS NULL
                            OR limits.stage IS NULL
                            OR limits.stage = ANY ("jobreaper_jobs_claim".stages::text[]))
                       AND (candidate.id::uuid IS NULL
                            OR EXISTS (SELECT FROM "public"."jobreaper_jobs" AS job
                                        WHERE job."id" = candidate.id::uuid AND (job."stage" = limits.stage OR job."queue"::text = limits.queue)))
                ),
                -- A message that finds its stage or queue full is unmarked, so that another one can be sent.
                sent_in_vain AS (
                    UPDATE "public"."jobreaper_jobs" AS job
                       SET "dispatched_at" = NULL
                     WHERE job."id" = candidate.id::uuid
                       AND job."status" = 'queued'
                       AND (job."stage" = ANY (ARRAY(SELECT stage FROM slots WHERE free <= 0))
                           OR job."queue"::text = ANY (ARRAY(SELECT queue FROM slots WHERE free <= 0)))
                ),
                -- The next due jobs, highest priority first; within a priority as in due.sql. Each priority has its
                -- own range in the index, which is read only while more jobs are needed: a single ORDER BY over all
                -- of them would read every job of a higher priority that is scheduled for the future. As in
                -- due.sql, nothing is ordered only by id. The last step finds no lower priority: NULL, which stands
                -- for the jobs without a priority.
                -- Read once, and not for each condition that needs it.
                left_out AS MATERIALIZED (
                    SELECT ARRAY(SELECT name FROM "public"."jobreaper_pauses" WHERE "table" = 'jobreaper_jobs')::text[] AS paused,
                           -- They are tried again, with the others, once their time has come.
                           ARRAY(SELECT key
                                   FROM "public"."jobreaper_refused_rows"
                                  WHERE "table" = 'jobreaper_jobs'
                                    AND verb = 'claim'
                                    AND next_try_at > statement_timestamp()) AS refused
                ),
                named AS MATERIALIZED (
                    SELECT job."id" AS id
                      FROM "public"."jobreaper_jobs" AS job
                     WHERE job."id" = candidate.id::uuid
                       AND job."status" = 'queued'
                       AND (job."next_earliest_run_at" IS NULL
                            OR job."next_earliest_run_at" <= statement_timestamp())
                       AND ("jobreaper_jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobreaper_jobs_claim".stages::text[]))
                           AND (NULL::text[] IS NULL OR job."type"::text = ANY (NULL::text[]))
                           AND (NULL::text[] IS NULL OR job."queue"::text = ANY (NULL::text[]))
                           AND coalesce(job."stage", '') <> ALL (ARRAY(
                               SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))
                           AND coalesce(job."queue"::text, 'default') <> ALL (ARRAY(
                               SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))
                           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                       FOR NO KEY UPDATE SKIP LOCKED
                ),
                next AS MATERIALIZED (
                    WITH RECURSIVE present (priority) AS (
                        SELECT (SELECT job."priority"
                                  FROM "public"."jobreaper_jobs" AS job
                                 WHERE job."status" = 'queued'
                                   AND job."priority" IS NOT NULL
                                 ORDER BY job."priority" DESC
                                 LIMIT 1)
                         UNION ALL
                        SELECT (SELECT job."priority"
                                  FROM "public"."jobreaper_jobs" AS job
                                 WHERE job."status" = 'queued'
                                   AND job."priority" < present.priority
                                 ORDER BY job."priority" DESC
                                 LIMIT 1)
                          FROM present
                         WHERE present.priority IS NOT NULL
                    )
                    SELECT of_priority.*
                      FROM present
                     CROSS JOIN LATERAL (
                           -- All have the same priority. It is in the ORDER BY because otherwise the index would not serve
                           -- NULL.
                           SELECT *
                             FROM (SELECT job."id" AS id
                                     FROM "public"."jobreaper_jobs" AS job
                                    WHERE job."status" = 'queued'
                                      AND job."priority" = present.priority
                                      AND job."next_earliest_run_at" <= statement_timestamp()
                                      AND ("jobreaper_jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobreaper_jobs_claim".stages::text[]))
                                          AND (NULL::text[] IS NULL OR job."type"::text = ANY (NULL::text[]))
                                          AND (NULL::text[] IS NULL OR job."queue"::text = ANY (NULL::text[]))
                                          AND coalesce(job."stage", '') <> ALL (ARRAY(
                                              SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))
                                          AND coalesce(job."queue"::text, 'default') <> ALL (ARRAY(
                                              SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))
                                          AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                          AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                          AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                          AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                                    ORDER BY job."priority" DESC, job."next_earliest_run_at", job."id"
                                    LIMIT 1
                                      FOR NO KEY UPDATE SKIP LOCKED) AS timed
                            UNION ALL
                           SELECT *
                             FROM (SELECT job."id" AS id
                                     FROM "public"."jobreaper_jobs" AS job
                                    WHERE job."status" = 'queued'
                                      AND job."priority" = present.priority
                                      AND job."next_earliest_run_at" IS NULL
                                      AND ("jobreaper_jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobreaper_jobs_claim".stages::text[]))
                                          AND (NULL::text[] IS NULL OR job."type"::text = ANY (NULL::text[]))
                                          AND (NULL::text[] IS NULL OR job."queue"::text = ANY (NULL::text[]))
                                          AND coalesce(job."stage", '') <> ALL (ARRAY(
                                              SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))
                                          AND coalesce(job."queue"::text, 'default') <> ALL (ARRAY(
                                              SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))
                                          AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                          AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                          AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                          AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                                    ORDER BY job."priority" DESC, job."next_earliest_run_at", job."id"
                                    LIMIT 1
                                      FOR NO KEY UPDATE SKIP LOCKED) AS untimed
                           ) AS of_priority
                     WHERE candidate.id::uuid IS NULL
                     LIMIT 1
                ),
                due_or_more AS (
                    SELECT id FROM named UNION ALL
                    SELECT id FROM next
                ),
                due AS (
                    SELECT ranked.id
                      FROM (SELECT job."id" AS id,
                                   of_stage.free AS free_in_stage,
                                   of_queue.free AS free_in_queue,
                                   row_number() OVER (
                                       PARTITION BY job."stage"
                                       ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id") AS in_stage,
                                   row_number() OVER (
                                       PARTITION BY job."queue"::text
                                       ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id") AS in_queue
                              FROM "public"."jobreaper_jobs" AS job
                              LEFT JOIN slots AS of_stage ON of_stage.stage = job."stage"
                              LEFT JOIN slots AS of_queue ON of_queue.queue = job."queue"::text
                             WHERE job."id" = ANY (ARRAY(SELECT id FROM due_or_more))) AS ranked
                     WHERE (ranked.free_in_stage IS NULL OR ranked.in_stage <= ranked.free_in_stage)
                       AND (ranked.free_in_queue IS NULL OR ranked.in_queue <= ranked.free_in_queue)
                ),
                claimed AS (
                    UPDATE "public"."jobreaper_jobs" AS job
                       SET "status" = 'processing',
                           "updated_at" = statement_timestamp(),
                           -- What the last attempt has reported does not count for this one.
                           "progress" = NULL,
                           "progress_at" = NULL,
                           "stalls_at" = statement_timestamp() + policy.stall_after,
                           "locked_by" = "jobreaper_jobs_claim".worker,
                           "claimed_at" = statement_timestamp(),
                           "last_heartbeat_at" = statement_timestamp()
                               - 0 * interval '1 microsecond',
                           "deadline_at" = statement_timestamp() + policy.max_runtime,
                           "lease_expires_at" = GREATEST('epoch', LEAST(
                                                    statement_timestamp()
                                                    + make_interval(secs => LEAST(
                                                          GREATEST(policy.lease_sec,
                                                                   coalesce(job."expected_duration_ms", 0) / 1000.0 * policy.sla_factor),
                                                          31622400)),
                                                    statement_timestamp() + policy.max_runtime,
                                                    statement_timestamp() + policy.stall_after)),
                           "attempt_count" = coalesce(job."attempt_count", 0) + 1,
                           "lease_epoch" = coalesce(job."lease_epoch", 0) + 1
                      FROM policies AS policy
                     WHERE job."id" = ANY (ARRAY(SELECT id FROM due))
                       AND policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
                    RETURNING job.*
                )
                SELECT job.*
                  FROM claimed AS job
                 WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
                       -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
                       -- an error, as of any row that cannot be written.
                       (SELECT CASE WHEN count(*) = (SELECT count(*) FROM claimed) THEN true
                                    ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM claimed))::text
                                          || ' row(s)')::boolean END
                          FROM due)
                 ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id"
                INTO taken;
                has_more := true;
                tried := array_append(tried, candidate.id::uuid);
                IF FOUND THEN
                    -- Check what was written by one try, and no more than that.
                    IF deferred IS NOT NULL THEN
                        EXECUTE 'SET CONSTRAINTS ' || deferred || ' IMMEDIATE';
                        EXECUTE 'SET CONSTRAINTS ' || deferred || ' DEFERRED';
                    END IF;
                    RETURN NEXT taken;
                    most := most - 1;
                END IF;
            -- OTHERS does not catch a failed ASSERT in a trigger.
            EXCEPTION WHEN OTHERS OR assert_failure THEN
                IF SQLSTATE IN ('25006', '25P03', '25P04', '40001', '40P01', '53300', '55P03', '57P01', '57P02', '57P03', '57P05') OR left(SQLSTATE, 2) IN ('53', '57', '58') THEN
                    RAISE;
                END IF;
                -- What may be told of an error: its first line, if PostgreSQL quotes no values in it.
                said := left(CASE WHEN SQLERRM ~ 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]' THEN substring(SQLERRM FROM 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]')
                                  WHEN (left(SQLSTATE, 2) IN ('22', '2F', '38', '39', 'HV')
                                        OR SQLSTATE IN ('42601', '42602', '42622'))
                                       AND SQLSTATE NOT IN ('22001', '22012')
                                  THEN 'SQLSTATE ' || SQLSTATE
                                  ELSE split_part(SQLERRM, chr(10), 1) END, 1000);
                has_more := true;
                tried := array_append(tried, candidate.id::uuid);
                refused := array_append(refused, candidate.id::text);
                refusals := array_append(refusals, said);
                RAISE WARNING 'cannot claim job %: % (%)', candidate.id, said, SQLSTATE;
            END;
            EXIT WHEN clock_timestamp() > began + 2.0 * interval '1 second';
        END LOOP;
    END LOOP;
    BEGIN
        FOR taken IN -- Remember rows that could not be written, and leave them out for a minute, twice as long each
                     -- further time, up to an hour. In the order of their keys, so that two passes do not wait for each
                     -- other.
                     INSERT INTO "public"."jobreaper_refused_rows" AS refused
                            ("table", verb, key, error, tries, next_try_at)
                     SELECT 'jobreaper_jobs', 'claim', given.key, given.error, 1,
                            statement_timestamp() + interval '1 minute'
                       FROM unnest(this_call.refused::text[], this_call.refusals::text[]) AS given (key, error)
                      ORDER BY given.key
                     ON CONFLICT ("table", verb, key) DO UPDATE
                        SET error = excluded.error,
                            tries = refused.tries + 1,
                            next_try_at = statement_timestamp()
                                + LEAST(interval '1 minute' * 2 ^ LEAST(refused.tries, 20), interval '1 hour')
                      WHERE refused.next_try_at <= statement_timestamp()
                     RETURNING key LOOP END LOOP;
    EXCEPTION WHEN OTHERS THEN
        -- What may be told of an error: its first line, if PostgreSQL quotes no values in it.
        said := left(CASE WHEN SQLERRM ~ 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]' THEN substring(SQLERRM FROM 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]')
                          WHEN (left(SQLSTATE, 2) IN ('22', '2F', '38', '39', 'HV')
                                OR SQLSTATE IN ('42601', '42602', '42622'))
                               AND SQLSTATE NOT IN ('22001', '22012')
                          THEN 'SQLSTATE ' || SQLSTATE
                          ELSE split_part(SQLERRM, chr(10), 1) END, 1000);
        RAISE WARNING 'jobs that cannot be claimed are not remembered: % (%)', said, SQLSTATE;
    END;
END
$body$
