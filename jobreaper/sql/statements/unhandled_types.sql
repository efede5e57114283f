-- Types of queued jobs that nobody handles: neither a handler by type nor a Celery task by stage.
-- Bounded: a type is named, not counted to the end, and no more than the first in line are looked
-- at. What nobody runs comes to the front by and by.
SELECT type, count(*)
  FROM (SELECT type
          FROM (SELECT job.type, job.{stage} AS stage
                  FROM {table} AS job
                 WHERE {is_queued}
                 ORDER BY job.{next_earliest_run_at}, job.{id}
                 LIMIT %(look_at)s) AS in_line
         WHERE type <> ALL (%(types)s::text[])
           AND coalesce(stage, '') <> ALL (%(stages)s::text[])
         LIMIT %(most)s) AS unhandled
 GROUP BY type
 ORDER BY type
