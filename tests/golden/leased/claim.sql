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
-- The next due jobs. Retries and scheduled jobs that are due come before jobs that never had a
-- time. Two index ranges serve this order; a single ORDER BY over both would read every job that is
-- scheduled for the future. Ordered only by id, the second range might be read from the key's
-- index, with every finished job. FOR NO KEY UPDATE allows inserts of rows that refer to a job by
-- foreign key meanwhile.
-- Read once, and not for each condition that needs it.
left_out AS MATERIALIZED (
    SELECT ARRAY(SELECT name FROM jobreaper_pauses WHERE "table" = 'jobs')::text[] AS paused,
           -- They are tried again, with the others, once their time has come.
           ARRAY(SELECT key
                   FROM jobreaper_refused_rows
                  WHERE "table" = 'jobs'
                    AND verb = 'claim'
                    AND next_try_at > statement_timestamp()) AS refused
),
timed AS MATERIALIZED (
    SELECT job."id" AS id
      FROM "jobs" AS job
     WHERE job."status" = 'queued'
       AND job."next_earliest_run_at" <= statement_timestamp()
       AND (%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
     ORDER BY job."next_earliest_run_at", job."id"
     LIMIT %(n)s
       FOR NO KEY UPDATE SKIP LOCKED
),
untimed AS MATERIALIZED (
    SELECT job."id" AS id
      FROM "jobs" AS job
     WHERE job."status" = 'queued'
       AND job."next_earliest_run_at" IS NULL
       AND (%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
     ORDER BY job."next_earliest_run_at", job."id"
     LIMIT %(n)s - (SELECT count(*) FROM timed)
       FOR NO KEY UPDATE SKIP LOCKED
),
next AS (
    SELECT * FROM timed UNION ALL SELECT * FROM untimed
),
due AS (
    SELECT id FROM next
),
claimed AS (
    UPDATE "jobs" AS job
       SET "status" = 'processing',
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
                                    statement_timestamp() + policy.max_runtime)),
           "attempt_count" = coalesce(job."attempt_count", 0) + 1,
           "lease_epoch" = coalesce(job."lease_epoch", 0) + 1
      FROM policies AS policy
     WHERE job."id" = ANY (ARRAY(SELECT id FROM due))
       AND policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
    RETURNING job.*
)
SELECT "job"."id",
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
       "job"."payload",
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
 ORDER BY job."next_earliest_run_at", job."id"
