-- The jobs of a table with leases that stand still: those whose lease ran out, those that run without
-- one, and those that could have been claimed for longer than %(overdue_sec)s seconds. As in
-- due.sql, jobs that never had a time are a range of their own, and nothing is ordered only by the key.
SELECT job."id"::text AS key,
       job."id" AS id,
       'expired' AS kind,
       extract(epoch FROM statement_timestamp() - job."lease_expires_at")::float8 AS age_sec
  FROM (SELECT *
          FROM "jobreaper_jobs" AS job
         WHERE job."status" = 'processing'
           AND job."lease_expires_at" < statement_timestamp()
         ORDER BY job."lease_expires_at"
         LIMIT %(most)s) AS job
 UNION ALL
SELECT job."id"::text, job."id", 'no_lease',
       extract(epoch FROM statement_timestamp()
                          - GREATEST(job."last_heartbeat_at", job."claimed_at"))::float8
  FROM (SELECT *
          FROM "jobreaper_jobs" AS job
         WHERE job."status" = 'processing'
           AND job."lease_expires_at" IS NULL
         ORDER BY job."lease_expires_at"
         LIMIT %(most)s) AS job
 UNION ALL
SELECT job."id"::text, job."id", 'overdue',
       extract(epoch FROM statement_timestamp() - GREATEST(NULL::timestamptz, job."next_earliest_run_at", job."last_heartbeat_at", job."created_at"))::float8
  FROM (SELECT *
          FROM "jobreaper_jobs" AS job
         WHERE job."status" = 'queued'
           AND job."next_earliest_run_at"
               < statement_timestamp() - %(overdue_sec)s * interval '1 second'
         ORDER BY job."next_earliest_run_at", job."id"
         LIMIT %(most)s) AS job
 WHERE GREATEST(NULL::timestamptz, job."next_earliest_run_at", job."last_heartbeat_at", job."created_at") < statement_timestamp() - %(overdue_sec)s * interval '1 second'
 UNION ALL
SELECT job."id"::text, job."id", 'overdue',
       extract(epoch FROM statement_timestamp() - GREATEST(NULL::timestamptz, job."next_earliest_run_at", job."last_heartbeat_at", job."created_at"))::float8
  FROM (SELECT *
          FROM "jobreaper_jobs" AS job
         WHERE job."status" = 'queued'
           AND job."next_earliest_run_at" IS NULL
         ORDER BY job."next_earliest_run_at", job."id"
         LIMIT %(most)s) AS job
 WHERE GREATEST(NULL::timestamptz, job."next_earliest_run_at", job."last_heartbeat_at", job."created_at") < statement_timestamp() - %(overdue_sec)s * interval '1 second'
