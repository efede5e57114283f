-- Dry run of a pass: its verdicts, nothing locked and nothing written.
WITH
stale AS MATERIALIZED (
    SELECT job."at" AS "key_0", job."n" AS "key_1",
           jsonb_build_array(job."at", job."n")::text AS job_id,
           NULL::text AS stage,
           NULL::text AS locked_by,
           -- A job that failed and was requeued by hand starts from scratch.
           (SELECT 1 + count(*)::int
              FROM job_events AS event
             WHERE event.job_id = jsonb_build_array(job."at", job."n")::text
               AND event."table" = 'chores'
               AND event.type = 'reaper:requeued'
               AND event.id > coalesce((SELECT max(ended.id)
                                          FROM job_events AS ended
                                         WHERE ended.job_id = jsonb_build_array(job."at", job."n")::text
                                           AND ended."table" = 'chores'
                                           AND ended.type = 'reaper:failed(timeout)'), 0)) AS attempt_count,
           coalesce(NULL::int, 3) AS max_attempts,
           job."claimed_at"::timestamptz AS claimed_at,
           GREATEST(job."claimed_at") AS last_seen_at,
           limits.ttl
      FROM "chores" AS job
      JOIN (SELECT make_interval(secs => 60) AS ttl) AS limits ON true
     WHERE job."status" = 'processing'
       AND GREATEST(job."claimed_at") < statement_timestamp() - limits.ttl
       AND GREATEST(job."claimed_at") <= %(silent_by)s::timestamptz
       AND jsonb_build_array(job."at", job."n")::text <> ALL (%(skip)s::text[])
           AND (NOT (SELECT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                     WHERE refused."table" = 'chores'
                                       AND refused.verb = 'reap'))
                OR NOT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                WHERE refused."table" = 'chores'
                                  AND refused.verb = 'reap'
                                  AND refused.key = jsonb_build_array(job."at", job."n")::text::text))
     ORDER BY GREATEST(job."claimed_at")
     LIMIT %(batch)s
),
verdict AS MATERIALIZED (
    SELECT stale.*,
           stale.job_id AS id,
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
       END AS run_again_in_ms, (id::jsonb ->> 0)::timestamp with time zone AS "read_0", (id::jsonb ->> 1)::integer AS "read_1"
  FROM verdict
 ORDER BY last_seen_at
