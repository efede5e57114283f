-- Take the lease of one job by its id. Only the policy of its own stage is read: to read all of them
-- takes a tenth of a claim that was planned before.
WITH
-- The one job of a key, if it is due.
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
named AS MATERIALIZED (
    SELECT job."id" AS id, job."stage" AS stage
      FROM "jobreaper_jobs" AS job
     WHERE job."id" = %(id)s::uuid
       AND job."status" = 'queued'
       AND (job."next_earliest_run_at" IS NULL
            OR job."next_earliest_run_at" <= statement_timestamp())
       AND (%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
           AND (%(types)s::text[] IS NULL OR job."type"::text = ANY (%(types)s::text[]))
           AND (%(queues)s::text[] IS NULL OR job."queue"::text = ANY (%(queues)s::text[]))
           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND job."id"::text <> ALL ((SELECT refused FROM left_out)::text[])
       FOR NO KEY UPDATE SKIP LOCKED
),
due AS (
    SELECT id FROM named
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
      FROM named
     CROSS JOIN LATERAL (
           -- What a claim needs of the policy of a job's stage; the default policy has the stage ''.
           SELECT of_stage.lease_sec,
                  of_stage.sla_factor,
                  of_stage.max_runtime_sec * interval '1 second' AS max_runtime,
                  of_stage.stall_after_sec * interval '1 second' AS stall_after
             FROM jsonb_to_record(coalesce(%(policy_by_stage)s::jsonb -> named.stage,
                                           %(policy_by_stage)s::jsonb -> ''))
                  AS of_stage (lease_sec float8, sla_factor float8,
                               max_runtime_sec float8, stall_after_sec float8)
           ) AS policy
     WHERE job."id" = ANY (ARRAY(SELECT id FROM due))
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
