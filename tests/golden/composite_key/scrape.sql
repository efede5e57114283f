-- Scrape: the current state of a table. Nothing is counted beyond %(most)s rows, and the oldest due
-- job is looked for only among the next in line, because a scrape must not read a backlog of
-- millions. The ORDER BYs make PostgreSQL use the partial indexes.
WITH queued AS (
    SELECT FROM "chores" AS job
     WHERE job."status" = 'queued' AND %(look_at_queue)s  LIMIT %(most)s
),
running AS (
    SELECT -- For a table without leases: a job without a time to live is never reclaimed.
           CASE WHEN GREATEST(job."claimed_at") < statement_timestamp() - limits.ttl THEN 'expired'
                WHEN GREATEST(job."claimed_at") >= statement_timestamp() - limits.ttl THEN 'live'
                ELSE 'none' END AS state FROM "chores" AS job LEFT JOIN (SELECT make_interval(secs => 60) AS ttl) AS limits ON true WHERE job."status" = 'processing'  LIMIT %(most)s
),
due (since) AS (SELECT * FROM ((SELECT GREATEST(NULL::timestamptz, ) FROM "chores" AS job WHERE job."status" = 'queued' AND true  LIMIT 10000)) AS due WHERE %(look_at_queue)s),
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
