-- Stages of queued jobs that no task handles. Bounded: a stage is named, not counted to the end.
SELECT stage, count(*)
  FROM (SELECT job.{stage} AS stage
          FROM {table} AS job
         WHERE {is_queued}
           AND (job.{stage} IS NULL OR job.{stage} <> ALL (%(stages)s::text[]))
         LIMIT %(most)s) AS unhandled
 GROUP BY stage
 ORDER BY stage
