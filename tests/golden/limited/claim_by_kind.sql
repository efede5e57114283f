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
      FROM jsonb_to_recordset(%(policies)s::jsonb) AS policy (stage text, lease_sec float8, sla_factor float8, max_runtime_sec float8,
           stall_after_sec float8, backoff_ms bigint[], on_expiry text, max_reaps int, ttl_sec float8)
),
-- How many more jobs of each limited stage and queue may run, for the requested stages. A job whose
-- lease ran out does not count. Counted only up to the limit.
slots AS MATERIALIZED (
    SELECT limits.stage,
           limits.queue,
           limits.max_running - (
               SELECT count(*)
                 FROM (SELECT 1
                         FROM "jobreaper_jobs" AS job
                        WHERE (job."stage" = limits.stage OR job."queue"::text = limits.queue)
                          AND job."status" = 'processing'
                          AND job."lease_expires_at" >= statement_timestamp()
                       LIMIT limits.max_running) AS job) AS free
      FROM jsonb_to_recordset(%(limits)s::jsonb) AS limits (
           stage text, queue text, max_running int)
     WHERE (%(stages)s::text[] IS NULL
            OR limits.stage IS NULL
            OR limits.stage = ANY (%(stages)s::text[]))
       AND (%(id)s::uuid IS NULL
            OR EXISTS (SELECT FROM "jobreaper_jobs" AS job
                        WHERE job."id" = %(id)s::uuid AND (job."stage" = limits.stage OR job."queue"::text = limits.queue)))
),
-- A message that finds its stage or queue full is unmarked, so that another one can be sent.
sent_in_vain AS (
    UPDATE "jobreaper_jobs" AS job
       SET "dispatched_at" = NULL
     WHERE job."id" = %(id)s::uuid
       AND job."status" = 'queued'
       AND (job."stage" = ANY (ARRAY(SELECT stage FROM slots WHERE free <= 0))
           OR job."queue"::text = ANY (ARRAY(SELECT queue FROM slots WHERE free <= 0)))
),
-- The next due jobs, in the same order, without reading those of other kinds. A kind is a stage with
-- a type, a queue and a priority, as far as the table has them. The index by kind finds the kinds
-- in line one by one, and then the first jobs of each that is wanted. Some more than are needed,
-- since other claims may be about to take the same.
-- Read once, and not for each condition that needs it.
left_out AS MATERIALIZED (
    SELECT ARRAY(SELECT name FROM jobreaper_pauses WHERE "table" = 'jobreaper_jobs')::text[] AS paused,
           -- They are tried again, with the others, once their time has come.
           ARRAY(SELECT key
                   FROM jobreaper_refused_rows
                  WHERE "table" = 'jobreaper_jobs'
                    AND verb = 'claim'
                    AND next_try_at > statement_timestamp()) AS refused
),
kinds AS MATERIALIZED (
    WITH RECURSIVE present AS (
        (SELECT coalesce(job."stage", '') AS "stage",
                coalesce(job."type", '') AS "type",
                coalesce(job."queue", '') AS "queue",
                job."priority" AS "priority"
           FROM "jobreaper_jobs" AS job
          WHERE job."status" = 'queued'
          ORDER BY coalesce(job."stage", ''), coalesce(job."type", ''), coalesce(job."queue", ''), job."priority"
          LIMIT 1)
         UNION ALL
        SELECT following.*
          FROM present
         CROSS JOIN LATERAL (
               SELECT coalesce(job."stage", '') AS "stage",
                      coalesce(job."type", '') AS "type",
                      coalesce(job."queue", '') AS "queue",
                      job."priority" AS "priority"
                 FROM "jobreaper_jobs" AS job
                WHERE job."status" = 'queued'
                  AND (coalesce(job."stage", ''), coalesce(job."type", ''), coalesce(job."queue", ''), job."priority") > (present."stage", present."type", present."queue", present."priority")
                ORDER BY coalesce(job."stage", ''), coalesce(job."type", ''), coalesce(job."queue", ''), job."priority"
                LIMIT 1) AS following
    )
    SELECT *
      FROM present AS job
     WHERE (%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
           AND (%(types)s::text[] IS NULL OR job."type"::text = ANY (%(types)s::text[]))
           AND (%(queues)s::text[] IS NULL OR job."queue"::text = ANY (%(queues)s::text[]))
           AND coalesce(job."stage", '') <> ALL (ARRAY(
               SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))
           AND coalesce(job."queue"::text, 'default') <> ALL (ARRAY(
               SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))
           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
),
first_of_kinds AS MATERIALIZED (
    SELECT job.id
      FROM kinds
     CROSS JOIN LATERAL (
           (SELECT coalesce(job."next_earliest_run_at", 'infinity'::timestamptz) AS run_at, job."id" AS id
              FROM "jobreaper_jobs" AS job
             WHERE job."status" = 'queued'
               AND coalesce(job."stage", '') = kinds."stage"
                   AND coalesce(job."type", '') = kinds."type"
                   AND coalesce(job."queue", '') = kinds."queue"
                   AND job."priority" = kinds."priority"
               AND coalesce(job."next_earliest_run_at", 'infinity'::timestamptz) <= statement_timestamp()
               AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
             ORDER BY coalesce(job."next_earliest_run_at", 'infinity'::timestamptz), job."id"
             LIMIT 2 * %(n)s + 100)
            UNION ALL
           (SELECT coalesce(job."next_earliest_run_at", 'infinity'::timestamptz) AS run_at, job."id" AS id
              FROM "jobreaper_jobs" AS job
             WHERE job."status" = 'queued'
               AND coalesce(job."stage", '') = kinds."stage"
                   AND coalesce(job."type", '') = kinds."type"
                   AND coalesce(job."queue", '') = kinds."queue"
                   AND job."priority" = kinds."priority"
               AND coalesce(job."next_earliest_run_at", 'infinity'::timestamptz) >= 'infinity'
                   AND coalesce(job."next_earliest_run_at", '-infinity') = '-infinity'
               AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
             ORDER BY coalesce(job."next_earliest_run_at", 'infinity'::timestamptz), job."id"
             LIMIT 2 * %(n)s + 100)
           ) AS job
     ORDER BY kinds."priority" DESC, job.run_at, job.id
     LIMIT 2 * %(n)s + 100
),
due_or_more AS MATERIALIZED (
    SELECT job."id" AS id
      FROM "jobreaper_jobs" AS job
     WHERE job."id" = ANY (ARRAY(SELECT id FROM first_of_kinds))
       AND job."status" = 'queued'
       AND (job."next_earliest_run_at" IS NULL
            OR job."next_earliest_run_at" <= statement_timestamp())
       AND (%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
           AND (%(types)s::text[] IS NULL OR job."type"::text = ANY (%(types)s::text[]))
           AND (%(queues)s::text[] IS NULL OR job."queue"::text = ANY (%(queues)s::text[]))
           AND coalesce(job."stage", '') <> ALL (ARRAY(
               SELECT stage FROM slots WHERE free <= 0 AND stage IS NOT NULL))
           AND coalesce(job."queue"::text, 'default') <> ALL (ARRAY(
               SELECT queue FROM slots WHERE free <= 0 AND queue IS NOT NULL))
           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
     ORDER BY job."priority" DESC NULLS LAST, coalesce(job."next_earliest_run_at", 'infinity'::timestamptz), job."id"
     LIMIT %(n)s
       FOR NO KEY UPDATE SKIP LOCKED
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
              FROM "jobreaper_jobs" AS job
              LEFT JOIN slots AS of_stage ON of_stage.stage = job."stage"
              LEFT JOIN slots AS of_queue ON of_queue.queue = job."queue"::text
             WHERE job."id" = ANY (ARRAY(SELECT id FROM due_or_more))) AS ranked
     WHERE (ranked.free_in_stage IS NULL OR ranked.in_stage <= ranked.free_in_stage)
       AND (ranked.free_in_queue IS NULL OR ranked.in_queue <= ranked.free_in_queue)
),
claimed AS (
    UPDATE "jobreaper_jobs" AS job
       SET "status" = 'processing',
           "updated_at" = statement_timestamp(),
           -- What the last attempt has reported does not count for this one.
           "progress" = NULL,
           "progress_at" = NULL,
           "stalls_at" = statement_timestamp() + policy.stall_after,
           "locked_by" = %(worker)s,
           "claimed_at" = statement_timestamp(),
           "last_heartbeat_at" = statement_timestamp()
               - %(mark_us)s * interval '1 microsecond',
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
SELECT "job"."progress",
       "job"."progress_at",
       "job"."stalls_at",
       "job"."status",
       "job"."stage",
       "job"."locked_by",
       "job"."claimed_at",
       "job"."lease_expires_at",
       "job"."last_heartbeat_at",
       "job"."lease_epoch",
       "job"."attempt_count",
       "job"."max_attempts",
       "job"."reap_count",
       "job"."next_earliest_run_at",
       "job"."expected_duration_ms",
       "job"."deadline_at",
       "job"."finished_at",
       "job"."dispatched_at",
       "job"."fail_code",
       "job"."fail_reason",
       "job"."id",
       "job"."type",
       "job"."priority",
       "job"."queue",
       "job"."org_id",
       "job"."payload",
       "job"."result",
       "job"."dedupe_key",
       "job"."traceparent",
       "job"."created_at",
       "job"."updated_at",
       extract(epoch FROM job."lease_expires_at" - statement_timestamp())::float8
           AS lease_remaining_sec,
       (SELECT jsonb_object_agg(name, coalesce(current_setting(name, true), ''))::text
          FROM unnest(%(session_settings)s::text[]) AS name) AS session
  FROM claimed AS job
 WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
       -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
       -- an error, as of any row that cannot be written.
       (SELECT CASE WHEN count(*) = (SELECT count(*) FROM claimed) THEN true
                    ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM claimed))::text
                          || ' row(s)')::boolean END
          FROM due)
 ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id"
