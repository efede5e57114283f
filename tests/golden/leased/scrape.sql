-- Scrape: the current state of a table. Nothing is counted beyond %(most)s rows, and the oldest due
-- job is looked for only among the next in line, because a scrape must not read a backlog of
-- millions. The ORDER BYs make PostgreSQL use the partial indexes.
WITH queued AS (
    SELECT FROM "jobs" AS job
     WHERE job."status" = 'queued' AND %(look_at_queue)s ORDER BY job."next_earliest_run_at", job."id" LIMIT %(most)s
),
running AS (
    SELECT -- The same as in LeasedJobQuerySet.with_lease_state().
           CASE WHEN job."lease_expires_at" IS NULL THEN 'none'
                WHEN job."lease_expires_at" < statement_timestamp() THEN 'expired'
                WHEN job."last_heartbeat_at" >= statement_timestamp() - make_interval(secs => %(late_sec)s)
                THEN 'live'
                ELSE 'late' END AS state FROM "jobs" AS job WHERE job."status" = 'processing' ORDER BY job."lease_expires_at" LIMIT %(most)s
),
due (since) AS (SELECT * FROM ((SELECT GREATEST(NULL::timestamptz, job."next_earliest_run_at", job."last_heartbeat_at", job."created_at") FROM "jobs" AS job WHERE job."status" = 'queued' AND job."next_earliest_run_at" <= statement_timestamp() ORDER BY job."next_earliest_run_at", job."id" LIMIT 10000)
                                UNION ALL
                               (SELECT GREATEST(NULL::timestamptz, job."next_earliest_run_at", job."last_heartbeat_at", job."created_at") FROM "jobs" AS job WHERE job."status" = 'queued' AND job."next_earliest_run_at" IS NULL ORDER BY job."next_earliest_run_at", job."id" LIMIT 10000)) AS due WHERE %(look_at_queue)s),
by_queue AS (
    SELECT NULL::text AS queue, 0 AS number WHERE false
)
SELECT (SELECT count(*) FROM queued),
       count(*) FILTER (WHERE state = 'live'),
       count(*) FILTER (WHERE state = 'late'),
       count(*) FILTER (WHERE state = 'expired'),
       count(*) FILTER (WHERE state = 'none'),
       GREATEST(extract(epoch FROM statement_timestamp() - (
           SELECT min(since) FROM due WHERE isfinite(since))), 0)::float8,
       (SELECT jsonb_object_agg(queue, number) FROM by_queue)
  FROM running
