-- Queued jobs that nothing runs, by type in the ready-made queue, whose handlers are by type, and
-- by stage elsewhere. Only the first jobs in line are read, and not all are counted. A job that
-- nothing runs eventually comes to the front.
SELECT kind, count(*)
  FROM (SELECT kind
          FROM (SELECT CASE WHEN %(types)s::text[] IS NULL THEN job."stage" ELSE job."type"::text END AS kind, job."stage" AS stage
                  FROM "jobreaper_jobs" AS job
                 WHERE job."status" = 'queued'
                 ORDER BY job."next_earliest_run_at", job."id"
                 LIMIT %(look_at)s) AS in_line
         WHERE coalesce(kind <> ALL (%(types)s::text[]), true)
           AND coalesce(stage <> ALL (%(stages)s::text[]), true)
         LIMIT %(most)s) AS unhandled
 GROUP BY kind
 ORDER BY kind
