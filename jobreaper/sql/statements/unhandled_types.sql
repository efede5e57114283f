-- Types of queued jobs that nobody handles: neither a handler by type nor a Celery task by stage.
-- Bounded: a type is named, not counted to the end.
SELECT type, count(*)
  FROM (SELECT job.type
          FROM {table} AS job
         WHERE {is_queued}
           AND job.type <> ALL (%(types)s::text[])
           AND coalesce(job.{stage}, '') <> ALL (%(stages)s::text[])
         LIMIT %(most)s) AS unhandled
 GROUP BY type
 ORDER BY type
