-- The stages of the queued jobs that are next in line, and how many of those each has.
SELECT coalesce(in_line.stage, ''), count(*)
  FROM (SELECT job."stage" AS stage
          FROM "jobreaper_jobs" AS job
         WHERE job."status" = 'queued'
         ORDER BY job."next_earliest_run_at", job."id"
         LIMIT %(most)s) AS in_line
 GROUP BY 1
 ORDER BY 2 DESC
 LIMIT 50
