-- All have the same priority. It stands in the ORDER BY since the index would not serve NULL otherwise.
SELECT id
  FROM (SELECT job.{id} AS id
          FROM {table} AS job
         WHERE {is_queued}
           AND {has_priority}
           AND job.{next_earliest_run_at} <= statement_timestamp()
           AND {wanted}
         ORDER BY job.{priority} DESC, job.{next_earliest_run_at}, job.{id}
         LIMIT %(n)s
           FOR NO KEY UPDATE SKIP LOCKED) AS timed
 UNION ALL
SELECT id
  FROM (SELECT job.{id} AS id
          FROM {table} AS job
         WHERE {is_queued}
           AND {has_priority}
           AND job.{next_earliest_run_at} IS NULL
           AND {wanted}
         ORDER BY job.{priority} DESC, job.{next_earliest_run_at}, job.{id}
         LIMIT %(n)s
           FOR NO KEY UPDATE SKIP LOCKED) AS untimed
