-- The next due jobs, highest priority first, of each priority as in due.sql. Each priority is a
-- range of its own in the index, visited only while jobs are wanted: one ORDER BY over all of them
-- would walk every job of a higher priority that is scheduled for the future. As in due.sql nothing
-- is ordered by id alone. The last step finds no lower priority: NULL, which stands for the jobs that
-- have none.
named AS MATERIALIZED (
    SELECT job.{id} AS id
      FROM {table} AS job
     WHERE job.{id} = %(id)s::{id_type}
       AND {is_queued}
       AND (job.{next_earliest_run_at} IS NULL
            OR job.{next_earliest_run_at} <= statement_timestamp())
       AND {wanted}
       FOR NO KEY UPDATE SKIP LOCKED
),
next AS MATERIALIZED (
    WITH RECURSIVE present (priority) AS (
        SELECT (SELECT job.{priority}
                  FROM {table} AS job
                 WHERE {is_queued}
                   AND job.{priority} IS NOT NULL
                 ORDER BY job.{priority} DESC
                 LIMIT 1)
         UNION ALL
        SELECT (SELECT job.{priority}
                  FROM {table} AS job
                 WHERE {is_queued}
                   AND job.{priority} < present.priority
                 ORDER BY job.{priority} DESC
                 LIMIT 1)
          FROM present
         WHERE present.priority IS NOT NULL
    )
    SELECT of_priority.id
      FROM present
     CROSS JOIN LATERAL (
           {of_present}
           ) AS of_priority
     WHERE %(id)s::{id_type} IS NULL
     LIMIT %(n)s
),
{picked} AS (
    SELECT id FROM named UNION ALL SELECT id FROM next
)
