-- Reclaim: one batch of running jobs of a table without leases, whose last sign of life is older
-- than their type allows, goes back to the queue, or fails if the attempts are used up.
--
-- A type without a time to live is never reclaimed.
WITH
stale AS MATERIALIZED (
    SELECT job."id" AS "key_0",
           job."id"::text AS job_id,
           job."type"::text AS stage,
           job."locked_by"::text AS locked_by,
           coalesce(job."attempts"::int, 0) + 1 AS attempt_count,
           coalesce(NULL::int, 11) AS max_attempts,
           job."locked_at"::timestamptz AS claimed_at,
           GREATEST(job."heartbeat_at", job."locked_at") AS last_seen_at,
           limits.ttl
      FROM "executor_jobs" AS job
      JOIN (SELECT * FROM (VALUES ('protect_document_v2', make_interval(secs => 300.0)), ('document.protected', make_interval(secs => 300.0)), ('build_artifact', make_interval(secs => 900.0)), ('run_tsa', make_interval(secs => 1800.0)), ('submit_anchor_polygon', make_interval(secs => 3600.0)), ('submit_anchor_bitcoin', make_interval(secs => 3600.0))) AS limits (stage, ttl)) AS limits ON limits.stage = job."type"::text
     WHERE job."status" IN ('running', 'processing')
       AND GREATEST(job."heartbeat_at", job."locked_at") < statement_timestamp() - limits.ttl
       AND GREATEST(job."heartbeat_at", job."locked_at") <= %(silent_by)s::timestamptz
       AND job."id" <> ALL (%(skip)s::uuid[])
           AND (NOT (SELECT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                     WHERE refused."table" = 'executor_jobs'
                                       AND refused.verb = 'reap'))
                OR NOT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                WHERE refused."table" = 'executor_jobs'
                                  AND refused.verb = 'reap'
                                  AND refused.key = job."id"::text))
     ORDER BY GREATEST(job."heartbeat_at", job."locked_at")
     LIMIT %(batch)s
       FOR NO KEY UPDATE OF job SKIP LOCKED
),
verdict AS MATERIALIZED (
    SELECT stale.*,
           stale.key_0 AS id,
           'lease_expired'::text AS reason,
           0 AS lease_epoch,
           decided.requeues,
           CASE WHEN NOT decided.requeues THEN 'timeout' END AS fail_code,
           statement_timestamp() AS run_again_at,
           CASE WHEN isfinite(stale.last_seen_at) THEN
               round(extract(epoch FROM statement_timestamp() - stale.last_seen_at - stale.ttl)
                     * 1000)::bigint END AS overdue_ms,
           'RECLAIMED_TTL' || ': Exceeded TTL (' || allowed.in_words || ')'
               || CASE WHEN stale.attempt_count >= stale.max_attempts
                       THEN ' - Max attempts reached' ELSE '' END AS note
      FROM stale
     CROSS JOIN LATERAL (
           SELECT 'requeue' <> 'fail' AND stale.attempt_count < stale.max_attempts AS requeues
           ) AS decided
     CROSS JOIN LATERAL (
           SELECT extract(epoch FROM stale.ttl) AS sec
           ) AS allowance
     CROSS JOIN LATERAL (
           SELECT CASE WHEN allowance.sec >= 60 AND mod(allowance.sec, 60) = 0
                       THEN trunc(allowance.sec / 60)::text || ' min'
                       ELSE allowance.sec::float8::text || ' s' END AS in_words
           ) AS allowed
),
reaped AS (
    UPDATE "executor_jobs" AS job
       SET
           "attempts" = verdict.attempt_count - (true AND NOT verdict.requeues)::int,
           "locked_by" = NULL,
           "locked_at" = CASE WHEN verdict.requeues THEN NULL ELSE job."locked_at" END,
           "last_error" = left(verdict.note, 2147483647),
           "updated_at" = statement_timestamp(),
           "status" = -- The last branch is never used. It gives the words the type of the column, which may be an enum.
                      CASE WHEN verdict.requeues THEN 'queued'
                           WHEN NOT verdict.requeues THEN 'dead'
                           ELSE job."status" END
      FROM verdict
     WHERE job."id" = verdict."key_0" AND job."id" = ANY (ARRAY(SELECT key_0 FROM verdict))
    RETURNING verdict.*
),
happened (job_id, type, details) AS (
    SELECT reaped.job_id,
           CASE WHEN reaped.requeues THEN 'reaper:requeued' ELSE 'reaper:failed(timeout)' END,
           jsonb_build_object(
               'reason', reaped.reason,
               'locked_by', reaped.locked_by,
               'stage', reaped.stage,
               'attempt', reaped.attempt_count,
               'claimed_at', to_char(reaped.claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'last_heartbeat_at', to_char(reaped.last_seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'ttl_sec', extract(epoch FROM reaped.ttl)::float8,
               'overdue_ms', reaped.overdue_ms,
               'note', reaped.note,
               'reaper', %(reaper)s::text)
      FROM reaped
),
event (job_id, data) AS (
    SELECT happened.job_id,
           jsonb_build_object(
               'type', happened.type,
               'table', 'executor_jobs'::text,
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
    SELECT CASE WHEN requeues THEN 'requeues' ELSE 'failures' END, 'executor_jobs',
           left(coalesce(stage, ''), 255), count(*),
           LEAST(coalesce(sum(overdue_ms), 0) * 1000, 9223372036854775807)
      FROM reaped
     GROUP BY requeues, left(coalesce(stage, ''), 255)
     UNION ALL
    SELECT 'taken_back:' || reason, 'executor_jobs', '', count(*), 0
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
