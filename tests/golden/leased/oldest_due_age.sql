-- How many seconds the oldest due job has waited, by the rule of the scrape; no row if there is
-- none.
SELECT GREATEST(extract(epoch FROM statement_timestamp() - since), 0)::float8
  FROM (SELECT min(since) FROM ((SELECT GREATEST(NULL::timestamptz, job."next_earliest_run_at", job."last_heartbeat_at", job."created_at") FROM "jobs" AS job WHERE job."status" = 'queued' AND job."next_earliest_run_at" <= statement_timestamp() ORDER BY job."next_earliest_run_at", job."id" LIMIT 10000)
                                 UNION ALL
                                (SELECT GREATEST(NULL::timestamptz, job."next_earliest_run_at", job."last_heartbeat_at", job."created_at") FROM "jobs" AS job WHERE job."status" = 'queued' AND job."next_earliest_run_at" IS NULL ORDER BY job."next_earliest_run_at", job."id" LIMIT 10000)) AS due (since) WHERE isfinite(since)) AS oldest (since)
 WHERE since IS NOT NULL
