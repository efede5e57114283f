-- Stages of queued jobs that no task handles. Bounded: a stage is named, not counted to the end, and
-- no more than the first in line are looked at. What nobody runs comes to the front by and by.
SELECT stage, count(*)
  FROM (SELECT stage
          FROM (SELECT job.{stage} AS stage
                  FROM {table} AS job
                 WHERE {is_queued}
                 ORDER BY job.{next_earliest_run_at}, job.{id}
                 LIMIT %(look_at)s) AS in_line
         WHERE stage IS NULL OR stage <> ALL (%(stages)s::text[])
         LIMIT %(most)s) AS unhandled
 GROUP BY stage
 ORDER BY stage
