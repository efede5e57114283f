-- Renew a lease, and record how far the job is if that is told; false means that it is lost.
CREATE OR REPLACE FUNCTION "public"."jobreaper_jobs_progress"(job_id uuid, worker text, epoch bigint, done float8, total float8 DEFAULT NULL, note text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = "pg_catalog", "pg_temp"
SET TimeZone = 'UTC'
SET DateStyle = 'ISO'
AS $body$
#variable_conflict use_column
DECLARE
    -- Without an epoch, the worker's name is the proof.
    held_epoch bigint := coalesce("jobreaper_jobs_progress".epoch, (
        SELECT job."lease_epoch"
          FROM "public"."jobreaper_jobs" AS job
         WHERE job."id" = "jobreaper_jobs_progress".job_id
           AND job."locked_by" = "jobreaper_jobs_progress".worker
           AND job."status" = 'processing'));
    beat record;
BEGIN
    -- Not negative, not NaN, and exact in every program that reads JSON.
    IF "jobreaper_jobs_progress".done IS NULL OR NOT "jobreaper_jobs_progress".done BETWEEN 0 AND 9007199254740992
       OR NOT "jobreaper_jobs_progress".total BETWEEN 0 AND 9007199254740992 THEN
        RAISE EXCEPTION 'done and total must be from 0 to 2^53, and done is not NULL'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Heartbeat: renew all leases that this process holds in one table.
    --
    -- A row that is locked, for example by the job's own transaction, is skipped; `held` then still
    -- says that the lease stands. An epoch below that of the lease means that the claim is not
    -- committed yet. A deadline needs no rule of its own, because no lease lasts beyond it; nor does a job
    -- that gets nowhere, because none lasts beyond the time at which it has stalled.
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
    lease AS MATERIALIZED (
        SELECT *
          FROM unnest(ARRAY["jobreaper_jobs_progress".job_id]::uuid[], ARRAY[held_epoch]::bigint[], ARRAY["jobreaper_jobs_progress".worker]::text[])
               WITH ORDINALITY AS lease (id, epoch, worker, place)
    ),
    -- What is new of what was reported under these leases: a report that says the same as the last one is
    -- no progress. A process may have an older lease of the same job, which has another epoch.
    reported AS MATERIALIZED (
        SELECT jsonb_object_agg(job."id"::text, lease.progress::jsonb) AS by_job
          FROM unnest(ARRAY["jobreaper_jobs_progress".job_id]::uuid[], ARRAY[held_epoch]::bigint[], ARRAY[jsonb_strip_nulls(jsonb_build_object('done', "jobreaper_jobs_progress".done, 'total', "jobreaper_jobs_progress".total, 'note', left("jobreaper_jobs_progress".note, 200)))::text]::text[])
               AS lease (id, epoch, progress)
          JOIN "public"."jobreaper_jobs" AS job ON job."id" = lease.id AND job."lease_epoch" = lease.epoch
         WHERE lease.progress::jsonb IS DISTINCT FROM job."progress"
           AND lease.progress IS NOT NULL
    ),
    reachable AS MATERIALIZED (
        SELECT job."id" AS id
          FROM "public"."jobreaper_jobs" AS job
          JOIN lease ON lease.id = job."id" AND lease.epoch = job."lease_epoch"
                    AND lease.worker = job."locked_by"::text
         WHERE job."status" = 'processing'
           FOR NO KEY UPDATE OF job SKIP LOCKED
    ),
    renewed AS (
        UPDATE "public"."jobreaper_jobs" AS job
           SET "last_heartbeat_at" = statement_timestamp(),
               "progress" = coalesce((SELECT by_job FROM reported) -> job."id"::text, job."progress"),
               "progress_at" = CASE WHEN (SELECT by_job FROM reported) -> job."id"::text IS NULL THEN job."progress_at" ELSE statement_timestamp() END,
               "stalls_at" = CASE WHEN (SELECT by_job FROM reported) -> job."id"::text IS NULL THEN job."stalls_at" ELSE statement_timestamp() + policy.stall_after END,
               "lease_expires_at" = -- An index contains the end of a lease, so to move it costs three times as much as to write the time
                                    -- of the heartbeat alone. So a heartbeat sets the end somewhat further than needed, and then leaves it
                                    -- alone until less than a lease is left. A lease never ends sooner than its length after a heartbeat.
                                    (SELECT CASE WHEN job."lease_expires_at" BETWEEN ends.soonest AND ends.latest
                                                 THEN job."lease_expires_at"
                                                 ELSE ends.latest END
                                       FROM (SELECT make_interval(secs => LEAST(
                                                        GREATEST(policy.lease_sec,
                                                                 coalesce(job."expected_duration_ms", 0) / 1000.0 * policy.sla_factor),
                                                        31622400)) AS length) AS its
                                      CROSS JOIN LATERAL (
                                            SELECT GREATEST('epoch', LEAST(
                                                       statement_timestamp()
                                                       + its.length,
                                                       job."deadline_at",
                                                       CASE WHEN (SELECT by_job FROM reported) -> job."id"::text IS NULL THEN job."stalls_at" ELSE statement_timestamp() + policy.stall_after END)) AS soonest,
                                                   GREATEST('epoch', LEAST(
                                                       statement_timestamp()
                                                       + its.length + LEAST(its.length / 3, interval '5 minutes'),
                                                       job."deadline_at",
                                                       CASE WHEN (SELECT by_job FROM reported) -> job."id"::text IS NULL THEN job."stalls_at" ELSE statement_timestamp() + policy.stall_after END)) AS latest
                                            ) AS ends)
          FROM policies AS policy
         WHERE job."id" = ANY (ARRAY(SELECT id FROM reachable))
           AND policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
        RETURNING job."id" AS id, job."lease_expires_at" AS lease_expires_at, job."stalls_at" AS stalls_at
    )
    SELECT coalesce(job."status" = 'processing' AND job."lease_epoch" = lease.epoch
                        AND job."locked_by"::text = lease.worker
                    OR job."lease_epoch" < lease.epoch, false) AS held,
           extract(epoch FROM renewed.lease_expires_at - statement_timestamp())::float8
               AS lease_remaining_sec,
           renewed.lease_expires_at,
           job."status" AS status,
           job."lease_epoch" AS epoch, renewed.stalls_at
      FROM lease
      LEFT JOIN renewed ON renewed.id = lease.id
      LEFT JOIN "public"."jobreaper_jobs" AS job ON job."id" = lease.id
     WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
           -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
           -- an error, as of any row that cannot be written.
           (SELECT CASE WHEN count(*) = (SELECT count(*) FROM renewed) THEN true
                        ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM renewed))::text
                              || ' row(s)')::boolean END
              FROM (SELECT DISTINCT id FROM reachable) AS job)
     ORDER BY lease.place
    INTO beat;
    RETURN coalesce(beat.held AND beat.epoch = held_epoch, false);
END
$body$
