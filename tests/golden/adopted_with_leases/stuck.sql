-- The jobs of a table with leases that stand still: those whose lease ran out, those that run without
-- one, and those that could have been claimed for longer than %(overdue_sec)s seconds. As in
-- due.sql, jobs that never had a time are a range of their own, and nothing is ordered only by the key.
SELECT job."Number"::text AS key,
       job."Number" AS id,
       'expired' AS kind,
       extract(epoch FROM statement_timestamp() - job."leased until")::float8 AS age_sec
  FROM (SELECT *
          FROM "office"."Errands" AS job
         WHERE job."State" IN ('running', 'finishing')
           AND job."leased until" < statement_timestamp()
         ORDER BY job."leased until"
         LIMIT %(most)s) AS job
 UNION ALL
SELECT job."Number"::text, job."Number", 'no_lease',
       extract(epoch FROM statement_timestamp()
                          - GREATEST(job."seen", job."started"))::float8
  FROM (SELECT *
          FROM "office"."Errands" AS job
         WHERE job."State" IN ('running', 'finishing')
           AND job."leased until" IS NULL
         ORDER BY job."leased until"
         LIMIT %(most)s) AS job
 UNION ALL
SELECT job."Number"::text, job."Number", 'overdue',
       extract(epoch FROM statement_timestamp() - GREATEST(NULL::timestamptz, job."not_before", job."seen"))::float8
  FROM (SELECT *
          FROM "office"."Errands" AS job
         WHERE job."State" = 'waiting'
           AND job."not_before"
               < statement_timestamp() - %(overdue_sec)s * interval '1 second'
         ORDER BY job."not_before", job."Number"
         LIMIT %(most)s) AS job
 WHERE GREATEST(NULL::timestamptz, job."not_before", job."seen") < statement_timestamp() - %(overdue_sec)s * interval '1 second'
 UNION ALL
SELECT job."Number"::text, job."Number", 'overdue',
       extract(epoch FROM statement_timestamp() - GREATEST(NULL::timestamptz, job."not_before", job."seen"))::float8
  FROM (SELECT *
          FROM "office"."Errands" AS job
         WHERE job."State" = 'waiting'
           AND job."not_before" IS NULL
         ORDER BY job."not_before", job."Number"
         LIMIT %(most)s) AS job
 WHERE GREATEST(NULL::timestamptz, job."not_before", job."seen") < statement_timestamp() - %(overdue_sec)s * interval '1 second'
