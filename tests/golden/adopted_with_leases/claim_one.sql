-- Take the lease of one job by its id. Only the policy of its own stage is read: to read all of them
-- takes a tenth of a claim that was planned before.
WITH
-- The one job of a key, if it is due.
-- Read once, and not for each condition that needs it.
left_out AS MATERIALIZED (
    SELECT ARRAY(SELECT name FROM jobreaper_pauses WHERE "table" = 'office.Errands')::text[] AS paused,
           -- They are tried again, with the others, once their time has come.
           ARRAY(SELECT key
                   FROM jobreaper_refused_rows
                  WHERE "table" = 'office.Errands'
                    AND verb = 'claim'
                    AND next_try_at > statement_timestamp()) AS refused
),
named AS MATERIALIZED (
    SELECT job."Number" AS id, job."kind"::text AS stage
      FROM "office"."Errands" AS job
     WHERE job."Number" = %(id)s::bigint
       AND job."State" = 'waiting'
       AND (job."not_before" IS NULL
            OR job."not_before" <= statement_timestamp())
       AND (%(stages)s::text[] IS NULL OR job."kind"::text = ANY (%(stages)s::text[]))
           AND coalesce(job."kind"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND job."Number"::text <> ALL ((SELECT refused FROM left_out)::text[])
       FOR NO KEY UPDATE SKIP LOCKED
),
due AS (
    SELECT id FROM named
),
claimed AS (
    UPDATE "office"."Errands" AS job
       SET "State" = 'running',
           "worker" = %(worker)s,
           "started" = statement_timestamp(),
           "seen" = statement_timestamp()
               - %(mark_us)s * interval '1 microsecond',
           "hard_end" = statement_timestamp() + policy.max_runtime,
           "leased until" = GREATEST('epoch', LEAST(
                                statement_timestamp()
                                + make_interval(secs => LEAST(
                                      GREATEST(policy.lease_sec,
                                               coalesce(job."expected_ms", 0) / 1000.0 * policy.sla_factor),
                                      31622400)),
                                statement_timestamp() + policy.max_runtime)),
           "tries" = coalesce(job."tries", 0) + 1,
           "fence" = coalesce(job."fence", 0) + 1
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
     WHERE job."Number" = ANY (ARRAY(SELECT id FROM due))
    RETURNING job.*
)
SELECT "job"."Number",
       "job"."State",
       "job"."kind",
       "job"."worker",
       "job"."started",
       "job"."leased until",
       "job"."seen",
       "job"."fence",
       "job"."tries",
       "job"."tries_allowed",
       "job"."losses",
       "job"."not_before",
       "job"."expected_ms",
       "job"."hard_end",
       "job"."ended",
       "job"."sent",
       "job"."error_code",
       "job"."error_text",
       extract(epoch FROM job."leased until" - statement_timestamp())::float8
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
