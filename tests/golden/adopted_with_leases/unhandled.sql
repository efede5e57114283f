-- Queued jobs that nothing runs, by type in the ready-made queue, whose handlers are by type, and
-- by stage elsewhere. Only the first jobs in line are read, and not all are counted. A job that
-- nothing runs eventually comes to the front.
SELECT kind, count(*)
  FROM (SELECT kind
          FROM (SELECT job."kind"::text AS kind, job."kind"::text AS stage
                  FROM "office"."Errands" AS job
                 WHERE job."State" = 'waiting'
                 ORDER BY job."not_before", job."Number"
                 LIMIT %(look_at)s) AS in_line
         WHERE coalesce(kind <> ALL (%(types)s::text[]), true)
           AND coalesce(stage <> ALL (%(stages)s::text[]), true)
         LIMIT %(most)s) AS unhandled
 GROUP BY kind
 ORDER BY kind
