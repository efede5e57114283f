-- Scrape: the current state of a table. Nothing is counted beyond %(most)s rows, and the oldest due
-- job is looked for only among the next in line, because a scrape must not read a backlog of
-- millions. The ORDER BYs make PostgreSQL use the partial indexes.
WITH queued AS (
    SELECT FROM "office"."Errands" AS job
     WHERE job."State" = 'waiting' AND %(look_at_queue)s ORDER BY job."not_before", job."Number" LIMIT %(most)s
),
running AS (
    SELECT -- The same as in LeasedJobQuerySet.with_lease_state().
           CASE WHEN job."leased until" IS NULL THEN 'none'
                WHEN job."leased until" < statement_timestamp() THEN 'expired'
                WHEN job."seen" >= statement_timestamp() - make_interval(secs => %(late_sec)s)
                THEN 'live'
                ELSE 'late' END AS state FROM "office"."Errands" AS job WHERE job."State" IN ('running', 'finishing') ORDER BY job."leased until" LIMIT %(most)s
),
due (since) AS (SELECT * FROM ((SELECT GREATEST(NULL::timestamptz, job."not_before", job."seen") FROM "office"."Errands" AS job WHERE job."State" = 'waiting' AND job."not_before" <= statement_timestamp() ORDER BY job."not_before", job."Number" LIMIT 10000)
                                UNION ALL
                               (SELECT GREATEST(NULL::timestamptz, job."not_before", job."seen") FROM "office"."Errands" AS job WHERE job."State" = 'waiting' AND job."not_before" IS NULL ORDER BY job."not_before", job."Number" LIMIT 10000)) AS due WHERE %(look_at_queue)s),
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
