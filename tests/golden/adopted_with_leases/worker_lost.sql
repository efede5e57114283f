-- Worker lost: take back at once the leases of a process that is known to be dead. The reason says
-- whether it had been told to stop.
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
lost AS MATERIALIZED (
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
           statement_timestamp() AS ended_at,
           %(reason)s::text AS cause,
           %(how)s::text AS fail_reason
      FROM "office"."Errands" AS job
     WHERE job."State" IN ('running', 'finishing')
       AND job."worker" = %(worker)s
     ORDER BY job."Number"
       FOR NO KEY UPDATE OF job
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
    UPDATE "office"."Errands" AS job
       SET "State" = -- The last branch is never used. It gives the words the type of the column, which may be an enum.
                     CASE WHEN verdict.requeues THEN 'waiting'
                          WHEN NOT verdict.requeues THEN 'failed'
                          ELSE job."State" END,
           "fence" = verdict.lease_epoch + 1,
           "losses" = verdict.reap_count + verdict.reaps,
           "tries" = GREATEST(verdict.attempt_count - verdict.attempts_given_back, 0),
           "not_before" = CASE WHEN verdict.requeues THEN verdict.run_again_at
                                         ELSE job."not_before" END,
           "ended" = CASE WHEN verdict.requeues THEN job."ended"
                                ELSE statement_timestamp() END,
           "error_code" = CASE WHEN verdict.requeues THEN job."error_code"
                              ELSE left(verdict.fail_code, 200) END,
           "error_text" = CASE WHEN verdict.requeues THEN job."error_text"
                                ELSE left(coalesce(verdict.fail_reason, verdict.reason),
                                          2147483647) END,
           "worker" = '',
           "started" = NULL,
           "leased until" = NULL,
           "hard_end" = NULL,
           "sent" = NULL
      FROM verdict
     WHERE job."Number" = verdict.id
       AND job."Number" = ANY (ARRAY(SELECT id FROM verdict))
    RETURNING verdict.*
),
happened (job_id, type, details) AS (
    SELECT reaped.id::text,
           'job:worker_lost'::text,
           jsonb_build_object(
               'reason', reaped.reason,
               'how', reaped.fail_reason,
               'outcome', CASE WHEN reaped.requeues THEN 'waiting' ELSE 'failed' END,
               'fail_code', reaped.fail_code,
               'locked_by', reaped.locked_by,
               'stage', reaped.stage,
               'attempt', reaped.attempt_count,
               'epoch', reaped.lease_epoch,
               'claimed_at', to_char(reaped.claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'last_heartbeat_at',
                   to_char(reaped.last_heartbeat_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'reaper', %(reaper)s::text,
               'next_earliest_run_at', CASE WHEN reaped.requeues THEN
                   to_char(reaped.run_again_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END)
      FROM reaped
),
event (job_id, data) AS (
    SELECT happened.job_id,
           jsonb_build_object(
               'type', happened.type,
               'table', 'office.Errands'::text,
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
    SELECT CASE WHEN requeues THEN 'lost_and_requeued' ELSE 'lost_and_failed' END, 'office.Errands',
           left(coalesce(stage, ''), 255), count(*),
           LEAST(coalesce(sum(overdue_ms), 0) * 1000, 9223372036854775807)
      FROM reaped
     GROUP BY requeues, left(coalesce(stage, ''), 255)
     UNION ALL
    SELECT 'taken_back:' || reason, 'office.Errands', '', count(*), 0
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
