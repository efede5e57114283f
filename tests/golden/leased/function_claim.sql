-- Take the leases of at most n due jobs, or the lease of the job job_id, and return the jobs. A job
-- that cannot be written is left out and remembered. If it is the job job_id, its error is raised.
CREATE OR REPLACE FUNCTION "public"."jobs_claim"(
    worker text, n int DEFAULT 1, stages text[] DEFAULT NULL, job_id bigint DEFAULT NULL)
RETURNS SETOF "public"."jobs"
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
    most int := "jobs_claim".n;
    deferred text := -- The constraint triggers of the table and of its events that would refuse a row only at the COMMIT,
                     -- which would undo everything. Not the foreign keys, to whose columns nothing is written.
                     (SELECT string_agg(format('%I.%I', space.nspname, "check".conname), ', ')
                        FROM pg_constraint AS "check"
                        JOIN pg_namespace AS space ON space.oid = "check".connamespace
                       WHERE "check".conrelid IN ('"public"."jobs"'::regclass, '"public"."job_events"'::regclass)
                         AND "check".contype = 't'
                         AND "check".condeferred);
    -- For the jobs that are tried one by one.
    has_more boolean := true;
    tried bigint[] := '{}';
    refused text[] := '{}';
    refusals text[] := '{}';
BEGIN
    IF deferred IS NULL OR "jobs_claim".job_id IS NOT NULL THEN
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
                             -- The next due jobs. Retries and scheduled jobs that are due come before jobs that never had a
                             -- time. Two index ranges serve this order; a single ORDER BY over both would read every job that is
                             -- scheduled for the future. Ordered only by id, the second range might be read from the key's
                             -- index, with every finished job. FOR NO KEY UPDATE allows inserts of rows that refer to a job by
                             -- foreign key meanwhile.
                             -- Read once, and not for each condition that needs it.
                             left_out AS MATERIALIZED (
                                 SELECT ARRAY(SELECT name FROM "public"."jobreaper_pauses" WHERE "table" = 'jobs')::text[] AS paused,
                                        -- They are tried again, with the others, once their time has come.
                                        ARRAY(SELECT key
                                                FROM "public"."jobreaper_refused_rows"
                                               WHERE "table" = 'jobs'
                                                 AND verb = 'claim'
                                                 AND next_try_at > statement_timestamp()) AS refused
                             ),
                             named AS MATERIALIZED (
                                 SELECT job."id" AS id
                                   FROM "public"."jobs" AS job
                                  WHERE job."id" = "jobs_claim".job_id::bigint
                                    AND job."status" = 'queued'
                                    AND (job."next_earliest_run_at" IS NULL
                                         OR job."next_earliest_run_at" <= statement_timestamp())
                                    AND ("jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobs_claim".stages::text[]))
                                        AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                        AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                                    FOR NO KEY UPDATE SKIP LOCKED
                             ),
                             timed AS MATERIALIZED (
                                 SELECT job."id" AS id
                                   FROM "public"."jobs" AS job
                                  WHERE job."status" = 'queued'
                                    AND "jobs_claim".job_id::bigint IS NULL
                                    AND job."next_earliest_run_at" <= statement_timestamp()
                                    AND ("jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobs_claim".stages::text[]))
                                        AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                        AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                                  ORDER BY job."next_earliest_run_at", job."id"
                                  LIMIT this_call.most
                                    FOR NO KEY UPDATE SKIP LOCKED
                             ),
                             untimed AS MATERIALIZED (
                                 SELECT job."id" AS id
                                   FROM "public"."jobs" AS job
                                  WHERE job."status" = 'queued'
                                    AND "jobs_claim".job_id::bigint IS NULL
                                    AND job."next_earliest_run_at" IS NULL
                                    AND ("jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobs_claim".stages::text[]))
                                        AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                        AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                                  ORDER BY job."next_earliest_run_at", job."id"
                                  LIMIT this_call.most - (SELECT count(*) FROM timed)
                                    FOR NO KEY UPDATE SKIP LOCKED
                             ),
                             next AS (
                                 SELECT * FROM timed UNION ALL SELECT * FROM untimed
                             ),
                             due AS (
                                 SELECT id FROM named UNION ALL
                                 SELECT id FROM next
                             ),
                             claimed AS (
                                 UPDATE "public"."jobs" AS job
                                    SET "status" = 'processing',
                                        "locked_by" = "jobs_claim".worker,
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
                                                                 statement_timestamp() + policy.max_runtime)),
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
                              ORDER BY job."next_earliest_run_at", job."id";
                IF most = "jobs_claim".n THEN
                    RETURN;
                END IF;
                EXIT;
            -- OTHERS does not catch a failed ASSERT in a trigger.
            EXCEPTION WHEN OTHERS OR assert_failure THEN
                -- If the table refuses even a claim of no rows, the problem is the table itself.
                IF most <= 0 OR "jobs_claim".job_id IS NOT NULL OR SQLSTATE IN ('25006', '25P03', '25P04', '40001', '40P01', '53300', '55P03', '57P01', '57P02', '57P03', '57P05') OR left(SQLSTATE, 2) IN ('53', '57', '58') THEN
                    RAISE;
                END IF;
                most := 0;
            END;
        END LOOP;
        most := "jobs_claim".n;
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
            -- The next due jobs. Retries and scheduled jobs that are due come before jobs that never had a
            -- time. Two index ranges serve this order; a single ORDER BY over both would read every job that is
            -- scheduled for the future. Ordered only by id, the second range might be read from the key's
            -- index, with every finished job. FOR NO KEY UPDATE allows inserts of rows that refer to a job by
            -- foreign key meanwhile.
            -- Read once, and not for each condition that needs it.
            left_out AS MATERIALIZED (
                SELECT ARRAY(SELECT name FROM "public"."jobreaper_pauses" WHERE "table" = 'jobs')::text[] AS paused,
                       -- They are tried again, with the others, once their time has come.
                       ARRAY(SELECT key
                               FROM "public"."jobreaper_refused_rows"
                              WHERE "table" = 'jobs'
                                AND verb = 'claim'
                                AND next_try_at > statement_timestamp()) AS refused
            ),
            named AS MATERIALIZED (
                SELECT job."id" AS id
                  FROM "public"."jobs" AS job
                 WHERE job."id" = "jobs_claim".job_id::bigint
                   AND job."status" = 'queued'
                   AND (job."next_earliest_run_at" IS NULL
                        OR job."next_earliest_run_at" <= statement_timestamp())
                   AND job."id" <> ALL (this_call.tried::bigint[])
                       AND ("jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobs_claim".stages::text[]))
                       AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                       AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                   FOR NO KEY UPDATE SKIP LOCKED
            ),
            timed AS MATERIALIZED (
                SELECT job."id" AS id
                  FROM "public"."jobs" AS job
                 WHERE job."status" = 'queued'
                   AND "jobs_claim".job_id::bigint IS NULL
                   AND job."next_earliest_run_at" <= statement_timestamp()
                   AND job."id" <> ALL (this_call.tried::bigint[])
                       AND ("jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobs_claim".stages::text[]))
                       AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                       AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                 ORDER BY job."next_earliest_run_at", job."id"
                 LIMIT this_call.most
                   FOR NO KEY UPDATE SKIP LOCKED
            ),
            untimed AS MATERIALIZED (
                SELECT job."id" AS id
                  FROM "public"."jobs" AS job
                 WHERE job."status" = 'queued'
                   AND "jobs_claim".job_id::bigint IS NULL
                   AND job."next_earliest_run_at" IS NULL
                   AND job."id" <> ALL (this_call.tried::bigint[])
                       AND ("jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobs_claim".stages::text[]))
                       AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                       AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                 ORDER BY job."next_earliest_run_at", job."id"
                 LIMIT this_call.most - (SELECT count(*) FROM timed)
                   FOR NO KEY UPDATE SKIP LOCKED
            ),
            next AS (
                SELECT * FROM timed UNION ALL SELECT * FROM untimed
            ),
            due AS (
                SELECT id FROM named UNION ALL
                SELECT id FROM next
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
                -- The next due jobs. Retries and scheduled jobs that are due come before jobs that never had a
                -- time. Two index ranges serve this order; a single ORDER BY over both would read every job that is
                -- scheduled for the future. Ordered only by id, the second range might be read from the key's
                -- index, with every finished job. FOR NO KEY UPDATE allows inserts of rows that refer to a job by
                -- foreign key meanwhile.
                -- Read once, and not for each condition that needs it.
                left_out AS MATERIALIZED (
                    SELECT ARRAY(SELECT name FROM "public"."jobreaper_pauses" WHERE "table" = 'jobs')::text[] AS paused,
                           -- They are tried again, with the others, once their time has come.
                           ARRAY(SELECT key
                                   FROM "public"."jobreaper_refused_rows"
                                  WHERE "table" = 'jobs'
                                    AND verb = 'claim'
                                    AND next_try_at > statement_timestamp()) AS refused
                ),
                named AS MATERIALIZED (
                    SELECT job."id" AS id
                      FROM "public"."jobs" AS job
                     WHERE job."id" = candidate.id::bigint
                       AND job."status" = 'queued'
                       AND (job."next_earliest_run_at" IS NULL
                            OR job."next_earliest_run_at" <= statement_timestamp())
                       AND ("jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobs_claim".stages::text[]))
                           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                       FOR NO KEY UPDATE SKIP LOCKED
                ),
                timed AS MATERIALIZED (
                    SELECT job."id" AS id
                      FROM "public"."jobs" AS job
                     WHERE job."status" = 'queued'
                       AND candidate.id::bigint IS NULL
                       AND job."next_earliest_run_at" <= statement_timestamp()
                       AND ("jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobs_claim".stages::text[]))
                           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                     ORDER BY job."next_earliest_run_at", job."id"
                     LIMIT 1
                       FOR NO KEY UPDATE SKIP LOCKED
                ),
                untimed AS MATERIALIZED (
                    SELECT job."id" AS id
                      FROM "public"."jobs" AS job
                     WHERE job."status" = 'queued'
                       AND candidate.id::bigint IS NULL
                       AND job."next_earliest_run_at" IS NULL
                       AND ("jobs_claim".stages::text[] IS NULL OR job."stage" = ANY ("jobs_claim".stages::text[]))
                           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                     ORDER BY job."next_earliest_run_at", job."id"
                     LIMIT 1 - (SELECT count(*) FROM timed)
                       FOR NO KEY UPDATE SKIP LOCKED
                ),
                next AS (
                    SELECT * FROM timed UNION ALL SELECT * FROM untimed
                ),
                due AS (
                    SELECT id FROM named UNION ALL
                    SELECT id FROM next
                ),
                claimed AS (
                    UPDATE "public"."jobs" AS job
                       SET "status" = 'processing',
                           "locked_by" = "jobs_claim".worker,
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
                                                    statement_timestamp() + policy.max_runtime)),
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
                 ORDER BY job."next_earliest_run_at", job."id"
                INTO taken;
                has_more := true;
                tried := array_append(tried, candidate.id::bigint);
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
                tried := array_append(tried, candidate.id::bigint);
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
                     SELECT 'jobs', 'claim', given.key, given.error, 1,
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
