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
-- The next due jobs, highest priority first; within a priority as in due.sql. Each priority has its
-- own range in the index, which is read only while more jobs are needed: a single ORDER BY over all
-- of them would read every job of a higher priority that is scheduled for the future. As in
-- due.sql, nothing is ordered only by id. The last step finds no lower priority: NULL, which stands
-- for the jobs without a priority.
-- A claim looks along the line for a moment. After that, any job that is not for it takes the place of
-- one and ends the look. It is left where it is, and the claim by kind finds the rest.
looking AS MATERIALIZED (
    SELECT clock_timestamp() + 2 * interval '1 millisecond' AS until
),
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
next AS MATERIALIZED (
    WITH RECURSIVE present (priority) AS (
        SELECT (SELECT job."priority"
                  FROM "jobreaper_jobs" AS job
                 WHERE job."status" = 'queued'
                   AND job."priority" IS NOT NULL
                 ORDER BY job."priority" DESC
                 LIMIT 1)
         UNION ALL
        SELECT (SELECT job."priority"
                  FROM "jobreaper_jobs" AS job
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
             FROM (SELECT job."id" AS id,
                                        CASE WHEN clock_timestamp() < (SELECT until FROM looking) THEN true
                                             ELSE (%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
                                                  AND (%(types)s::text[] IS NULL OR job."type"::text = ANY (%(types)s::text[]))
                                                  AND (%(queues)s::text[] IS NULL OR job."queue"::text = ANY (%(queues)s::text[]))
                                                  AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                  AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                  AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                  AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out) END AS is_wanted
                     FROM "jobreaper_jobs" AS job
                    WHERE job."status" = 'queued'
                      AND job."priority" = present.priority
                      AND job."next_earliest_run_at" <= statement_timestamp()
                      AND ((%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
                           AND (%(types)s::text[] IS NULL OR job."type"::text = ANY (%(types)s::text[]))
                           AND (%(queues)s::text[] IS NULL OR job."queue"::text = ANY (%(queues)s::text[]))
                           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                           OR clock_timestamp() >= (SELECT until FROM looking))
                    ORDER BY job."priority" DESC, job."next_earliest_run_at", job."id"
                    LIMIT %(n)s
                      FOR NO KEY UPDATE SKIP LOCKED) AS timed
            UNION ALL
           SELECT *
             FROM (SELECT job."id" AS id,
                                        CASE WHEN clock_timestamp() < (SELECT until FROM looking) THEN true
                                             ELSE (%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
                                                  AND (%(types)s::text[] IS NULL OR job."type"::text = ANY (%(types)s::text[]))
                                                  AND (%(queues)s::text[] IS NULL OR job."queue"::text = ANY (%(queues)s::text[]))
                                                  AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                  AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                  AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                                                  AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out) END AS is_wanted
                     FROM "jobreaper_jobs" AS job
                    WHERE job."status" = 'queued'
                      AND job."priority" = present.priority
                      AND job."next_earliest_run_at" IS NULL
                      AND ((%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
                           AND (%(types)s::text[] IS NULL OR job."type"::text = ANY (%(types)s::text[]))
                           AND (%(queues)s::text[] IS NULL OR job."queue"::text = ANY (%(queues)s::text[]))
                           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                           AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                           OR clock_timestamp() >= (SELECT until FROM looking))
                    ORDER BY job."priority" DESC, job."next_earliest_run_at", job."id"
                    LIMIT %(n)s
                      FOR NO KEY UPDATE SKIP LOCKED) AS untimed
           ) AS of_priority
     LIMIT %(n)s
),
due AS (
    SELECT id FROM next
    WHERE is_wanted
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
          FROM unnest(%(session_settings)s::text[]) AS name) AS session,
       look.is_cut
  FROM -- One row in any case: if no job is claimed, a row without a job says how the look ended.
       (SELECT count(*) > 0 AS is_cut FROM next WHERE is_wanted IS NOT TRUE) AS look
       LEFT JOIN claimed AS job ON true
 WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
       -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
       -- an error, as of any row that cannot be written.
       (SELECT CASE WHEN count(*) = (SELECT count(*) FROM claimed) THEN true
                    ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM claimed))::text
                          || ' row(s)')::boolean END
          FROM due)
 ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id"
