-- Dry run of a pass: its verdicts, nothing locked and nothing written.
WITH
-- The jobs whose lease ran out, oldest first, and the verdict on each.
--
-- With a limit that the planner cannot see, it reads the index in order. With a limit that it sees,
-- it may read and sort every expired job for each batch.
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
      FROM jsonb_to_recordset(%(policies)s::jsonb) AS policy (stage text, lease_sec float8, sla_factor float8, max_runtime_sec float8,
           stall_after_sec float8, backoff_ms bigint[], on_expiry text, max_reaps int, ttl_sec float8)
),
expired AS MATERIALIZED (
    SELECT job."Number" AS id,
           job."kind"::text AS stage,
           job."worker" AS locked_by,
           coalesce(job."tries"::int, 0) AS attempt_count,
           coalesce(job."tries_allowed"::int, 3) AS max_attempts,
           coalesce(job."losses", 0) AS reap_count,
           coalesce(job."fence", 0) AS lease_epoch,
           job."started" AS claimed_at,
           job."seen" AS last_heartbeat_at,
           job."leased until" AS lease_expires_at,
           job."hard_end" AS deadline_at,
           false AS is_stalled,
           job."leased until" AS ended_at,
           NULL::text AS cause,
           NULL::text AS fail_reason
      FROM "office"."Errands" AS job
     WHERE job."State" IN ('running', 'finishing')
       AND job."leased until" < statement_timestamp()
       AND (job."not_before" IS NULL
            OR job."not_before" <= statement_timestamp()
            OR coalesce(job."tries"::int, 0) >= coalesce(job."tries_allowed"::int, 3))
       AND coalesce(GREATEST(job."seen", job."started"), '-infinity')
           <= %(silent_by)s::timestamptz
       AND job."Number" <> ALL (%(skip)s::bigint[])
           AND (NOT (SELECT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                     WHERE refused."table" = 'office.Errands'
                                       AND refused.verb = 'reap'))
                OR NOT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                WHERE refused."table" = 'office.Errands'
                                  AND refused.verb = 'reap'
                                  AND refused.key = job."Number"::text))
     ORDER BY job."leased until"
     LIMIT (SELECT %(batch)s::bigint)
),
-- Running without a lease, from workers older than leases: judged by the last sign of life, and
-- only if there is a time to live. GREATEST, not COALESCE: an old heartbeat, kept from an earlier
-- attempt, must not make a new attempt look dead.
silent AS MATERIALIZED (
    SELECT job."Number" AS id,
           job."kind"::text AS stage,
           job."worker" AS locked_by,
           coalesce(job."tries"::int, 0) AS attempt_count,
           coalesce(job."tries_allowed"::int, 3) AS max_attempts,
           coalesce(job."losses", 0) AS reap_count,
           coalesce(job."fence", 0) AS lease_epoch,
           job."started" AS claimed_at,
           job."seen" AS last_heartbeat_at,
           job."leased until" AS lease_expires_at,
           job."hard_end" AS deadline_at,
           false AS is_stalled,
           GREATEST(job."seen", job."started") + policy.ttl AS ended_at,
           NULL::text AS cause,
           NULL::text AS fail_reason
      FROM "office"."Errands" AS job
      JOIN policies AS policy ON policy.stage = CASE WHEN job."kind"::text IN (SELECT stage FROM policies) THEN job."kind"::text ELSE '' END
     WHERE (SELECT bool_or(ttl IS NOT NULL) FROM policies)
       AND job."State" IN ('running', 'finishing')
       AND job."leased until" IS NULL
       AND GREATEST(job."seen", job."started") + policy.ttl < statement_timestamp()
       AND (job."not_before" IS NULL
            OR job."not_before" <= statement_timestamp()
            OR coalesce(job."tries"::int, 0) >= coalesce(job."tries_allowed"::int, 3))
       AND coalesce(GREATEST(job."seen", job."started"), '-infinity')
           <= %(silent_by)s::timestamptz
       AND job."Number" <> ALL (%(skip)s::bigint[])
           AND (NOT (SELECT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                     WHERE refused."table" = 'office.Errands'
                                       AND refused.verb = 'reap'))
                OR NOT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                WHERE refused."table" = 'office.Errands'
                                  AND refused.verb = 'reap'
                                  AND refused.key = job."Number"::text))
     LIMIT %(batch)s - (SELECT count(*) FROM expired)
),
lost AS (
    SELECT * FROM expired UNION ALL SELECT * FROM silent
),
-- The verdict on each lost job. After a worker that is known to be dead, there is no wait the first
-- time; the second time, the job may be the reason. It is not if the worker had been told to stop: that
-- costs no attempt, and no wait either.
verdict AS MATERIALIZED (
    SELECT job.*,
           why.reason,
           decided.fail_code,
           decided.fail_code IS NULL AS requeues,
           (decided.fail_code IS NULL
            AND (budget.counts_reaps OR why.reason = 'worker_stopped'))::int
               AS attempts_given_back,
           (why.reason <> 'worker_stopped')::int AS reaps,
           CASE WHEN why.reason = 'worker_stopped'
                  OR why.reason = 'worker_lost' AND job.reap_count = 0
                THEN statement_timestamp()
                ELSE statement_timestamp() + policy.backoff_ms[LEAST(GREATEST(job.attempt_count, 1), cardinality(policy.backoff_ms))]
                                                 * interval '1 millisecond' END AS run_again_at,
           -- '-infinity', which a person may write in psql, has no distance from now.
           CASE WHEN isfinite(job.ended_at) THEN
               round(extract(epoch FROM statement_timestamp() - job.ended_at) * 1000)::bigint
               END AS overdue_ms
      FROM lost AS job
      JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
     CROSS JOIN LATERAL (
           SELECT CASE WHEN job.cause IS NOT NULL THEN job.cause
                       WHEN job.deadline_at <= job.lease_expires_at THEN 'deadline'
                       WHEN job.is_stalled THEN 'stalled'
                       ELSE 'lease_expired' END AS reason
           ) AS why
     CROSS JOIN LATERAL (
           SELECT policy.max_reaps IS NOT NULL AND why.reason NOT IN ('deadline', 'stalled')
                      AS counts_reaps,
                  CASE why.reason WHEN 'lease_expired' THEN 'timeout'
                                  WHEN 'worker_stopped' THEN 'worker_lost'
                                  ELSE why.reason END AS code
           ) AS budget
     CROSS JOIN LATERAL (
           SELECT CASE
                  WHEN policy.on_expiry = 'fail' THEN budget.code
                  WHEN why.reason = 'worker_stopped' THEN NULL
                  WHEN budget.counts_reaps THEN
                       CASE WHEN job.reap_count >= policy.max_reaps - 1 THEN 'poison' END
                  WHEN job.attempt_count >= job.max_attempts THEN budget.code
                  END AS fail_code
           ) AS decided
)
SELECT id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
       CASE WHEN requeues THEN
           round(extract(epoch FROM run_again_at - statement_timestamp()) * 1000)::bigint
       END AS run_again_in_ms
  FROM verdict
 ORDER BY ended_at
