-- Reap: one batch of jobs with expired leases goes back to the queue, or fails if no attempt is
-- left.
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
    SELECT job."id" AS id,
           job."stage" AS stage,
           job."locked_by" AS locked_by,
           coalesce(job."attempt_count"::int, 0) AS attempt_count,
           coalesce(job."max_attempts"::int, 3) AS max_attempts,
           coalesce(job."reap_count", 0) AS reap_count,
           coalesce(job."lease_epoch", 0) AS lease_epoch,
           job."claimed_at" AS claimed_at,
           job."last_heartbeat_at" AS last_heartbeat_at,
           job."lease_expires_at" AS lease_expires_at,
           job."deadline_at" AS deadline_at,
           job."progress" AS progress,
           job."progress_at" AS progress_at,
           coalesce(job."stalls_at" BETWEEN job."claimed_at" AND job."lease_expires_at"
                    AND 2 * extract(epoch FROM job."last_heartbeat_at")
                        >= extract(epoch FROM job."stalls_at")
                           + extract(epoch FROM GREATEST(job."progress_at", job."claimed_at")), false) AS is_stalled,
           job."lease_expires_at" AS ended_at,
           NULL::text AS cause,
           NULL::text AS fail_reason
      FROM "jobreaper_jobs" AS job
     WHERE job."status" = 'processing'
       AND job."lease_expires_at" < statement_timestamp()
       AND (job."next_earliest_run_at" IS NULL
            OR job."next_earliest_run_at" <= statement_timestamp()
            OR coalesce(job."attempt_count"::int, 0) >= coalesce(job."max_attempts"::int, 3))
       AND coalesce(GREATEST(job."last_heartbeat_at", job."claimed_at"), '-infinity')
           <= %(silent_by)s::timestamptz
       AND job."id" <> ALL (%(skip)s::uuid[])
           AND (NOT (SELECT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                     WHERE refused."table" = 'jobreaper_jobs'
                                       AND refused.verb = 'reap'))
                OR NOT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                WHERE refused."table" = 'jobreaper_jobs'
                                  AND refused.verb = 'reap'
                                  AND refused.key = job."id"::text))
     ORDER BY job."lease_expires_at"
     LIMIT (SELECT %(batch)s::bigint)
       FOR NO KEY UPDATE OF job SKIP LOCKED
),
-- Running without a lease, from workers older than leases: judged by the last sign of life, and
-- only if there is a time to live. GREATEST, not COALESCE: an old heartbeat, kept from an earlier
-- attempt, must not make a new attempt look dead.
silent AS MATERIALIZED (
    SELECT job."id" AS id,
           job."stage" AS stage,
           job."locked_by" AS locked_by,
           coalesce(job."attempt_count"::int, 0) AS attempt_count,
           coalesce(job."max_attempts"::int, 3) AS max_attempts,
           coalesce(job."reap_count", 0) AS reap_count,
           coalesce(job."lease_epoch", 0) AS lease_epoch,
           job."claimed_at" AS claimed_at,
           job."last_heartbeat_at" AS last_heartbeat_at,
           job."lease_expires_at" AS lease_expires_at,
           job."deadline_at" AS deadline_at,
           job."progress" AS progress,
           job."progress_at" AS progress_at,
           coalesce(job."stalls_at" BETWEEN job."claimed_at" AND job."lease_expires_at"
                    AND 2 * extract(epoch FROM job."last_heartbeat_at")
                        >= extract(epoch FROM job."stalls_at")
                           + extract(epoch FROM GREATEST(job."progress_at", job."claimed_at")), false) AS is_stalled,
           GREATEST(job."last_heartbeat_at", job."claimed_at") + policy.ttl AS ended_at,
           NULL::text AS cause,
           NULL::text AS fail_reason
      FROM "jobreaper_jobs" AS job
      JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
     WHERE (SELECT bool_or(ttl IS NOT NULL) FROM policies)
       AND job."status" = 'processing'
       AND job."lease_expires_at" IS NULL
       AND GREATEST(job."last_heartbeat_at", job."claimed_at") + policy.ttl < statement_timestamp()
       AND (job."next_earliest_run_at" IS NULL
            OR job."next_earliest_run_at" <= statement_timestamp()
            OR coalesce(job."attempt_count"::int, 0) >= coalesce(job."max_attempts"::int, 3))
       AND coalesce(GREATEST(job."last_heartbeat_at", job."claimed_at"), '-infinity')
           <= %(silent_by)s::timestamptz
       AND job."id" <> ALL (%(skip)s::uuid[])
           AND (NOT (SELECT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                     WHERE refused."table" = 'jobreaper_jobs'
                                       AND refused.verb = 'reap'))
                OR NOT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                WHERE refused."table" = 'jobreaper_jobs'
                                  AND refused.verb = 'reap'
                                  AND refused.key = job."id"::text))
     LIMIT %(batch)s - (SELECT count(*) FROM expired)
       FOR NO KEY UPDATE OF job SKIP LOCKED
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
),
-- `= ANY (ARRAY(...))` makes the planner find the jobs by their keys. With only a join on the
-- verdicts, it may read the whole table for every batch.
reaped AS (
    UPDATE "jobreaper_jobs" AS job
       SET "status" = -- The last branch is never used. It gives the words the type of the column, which may be an enum.
                      CASE WHEN verdict.requeues THEN 'queued'
                           WHEN NOT verdict.requeues THEN 'failed'
                           ELSE job."status" END,
           "lease_epoch" = verdict.lease_epoch + 1,
           "reap_count" = verdict.reap_count + verdict.reaps,
           "attempt_count" = GREATEST(verdict.attempt_count - verdict.attempts_given_back, 0),
           "next_earliest_run_at" = CASE WHEN verdict.requeues THEN verdict.run_again_at
                                         ELSE job."next_earliest_run_at" END,
           "finished_at" = CASE WHEN verdict.requeues THEN job."finished_at"
                                ELSE statement_timestamp() END,
           "fail_code" = CASE WHEN verdict.requeues THEN job."fail_code"
                              ELSE left(verdict.fail_code, 2147483647) END,
           "fail_reason" = CASE WHEN verdict.requeues THEN job."fail_reason"
                                ELSE left(coalesce(verdict.fail_reason, verdict.reason),
                                          2147483647) END,
           "updated_at" = statement_timestamp(),
           "locked_by" = NULL,
           "claimed_at" = NULL,
           "lease_expires_at" = NULL,
           "deadline_at" = NULL,
           "stalls_at" = NULL,
           "dispatched_at" = NULL
      FROM verdict
     WHERE job."id" = verdict.id
       AND job."id" = ANY (ARRAY(SELECT id FROM verdict))
    RETURNING verdict.*
),
happened (job_id, type, details) AS (
    SELECT reaped.id::text,
           CASE reaped.fail_code
               WHEN 'timeout' THEN 'reaper:failed(timeout)'
               WHEN 'poison' THEN 'reaper:failed(poison)'
               WHEN 'deadline' THEN 'reaper:failed(deadline)'
               WHEN 'stalled' THEN 'reaper:failed(stalled)'
               ELSE 'reaper:requeued' END,
           jsonb_build_object(
               'reason', reaped.reason,
               'locked_by', reaped.locked_by,
               'stage', reaped.stage,
               'attempt', reaped.attempt_count,
               'epoch', reaped.lease_epoch,
               'claimed_at', to_char(reaped.claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'last_heartbeat_at',
                   to_char(reaped.last_heartbeat_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'lease_expires_at', to_char(reaped.lease_expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'overdue_ms', reaped.overdue_ms,
               'progress', reaped.progress,
               'progress_at', to_char(reaped.progress_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'reaper', %(reaper)s::text,
               'next_earliest_run_at', CASE WHEN reaped.requeues THEN
                   to_char(reaped.run_again_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END)
      FROM reaped
),
event (job_id, data) AS (
    SELECT happened.job_id,
           jsonb_build_object(
               'type', happened.type,
               'table', 'jobreaper_jobs'::text,
               'details', happened.details,
               -- In a query of its own, it is written once for all events.
               'at', (SELECT to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
      FROM happened
),
-- A trigger may keep an event out. Nothing reads here whether it did: the change of the job counts.
recorded AS (
    INSERT INTO job_events (job_id, data)
    SELECT job_id, data FROM event
),
counted AS (
    INSERT INTO jobreaper_totals (name, "table", stage, count, microseconds)
    SELECT CASE WHEN requeues THEN 'requeues' ELSE 'failures' END, 'jobreaper_jobs',
           left(coalesce(stage, ''), 255), count(*),
           LEAST(coalesce(sum(overdue_ms), 0) * 1000, 9223372036854775807)
      FROM reaped
     GROUP BY requeues, left(coalesce(stage, ''), 255)
     UNION ALL
    SELECT 'taken_back:' || reason, 'jobreaper_jobs', '', count(*), 0
      FROM reaped
     GROUP BY reason
)
SELECT id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
       CASE WHEN requeues THEN
           round(extract(epoch FROM run_again_at - statement_timestamp()) * 1000)::bigint
       END AS run_again_in_ms
  FROM reaped
 WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
       -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
       -- an error, as of any row that cannot be written.
       (SELECT CASE WHEN count(*) = (SELECT count(*) FROM reaped) THEN true
                    ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM reaped))::text
                          || ' row(s)')::boolean END
          FROM verdict)
