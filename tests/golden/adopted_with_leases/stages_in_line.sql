-- The stages of the queued jobs that are next in line, and how many of those each has.
SELECT coalesce(in_line.stage, ''), count(*)
  FROM (SELECT job."kind"::text AS stage
          FROM "office"."Errands" AS job
         WHERE job."State" = 'waiting'
         ORDER BY job."not_before", job."Number"
         LIMIT %(most)s) AS in_line
 GROUP BY 1
 ORDER BY 2 DESC
 LIMIT 50
