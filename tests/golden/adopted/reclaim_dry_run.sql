-- Dry run of a pass: its verdicts, nothing locked and nothing written.
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
)
SELECT id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
       CASE WHEN requeues THEN
           round(extract(epoch FROM run_again_at - statement_timestamp()) * 1000)::bigint
       END AS run_again_in_ms
  FROM verdict
 ORDER BY last_seen_at
