-- The next due jobs. Retries and scheduled jobs whose time has come go before jobs that never had a
-- time. Two index ranges serve that order; one ORDER BY over both would walk every job scheduled
-- for the future. Ordered by id alone, the second might be read from the key's index, past every
-- finished job. FOR NO KEY UPDATE lets rows that refer to a job by foreign key be inserted meanwhile.
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
timed AS MATERIALIZED (
    SELECT job.{id} AS id
      FROM {table} AS job
     WHERE %(id)s::{id_type} IS NULL
       AND {is_queued}
       AND job.{next_earliest_run_at} <= statement_timestamp()
       AND {wanted}
     ORDER BY job.{next_earliest_run_at}, job.{id}
     LIMIT %(n)s
       FOR NO KEY UPDATE SKIP LOCKED
),
untimed AS MATERIALIZED (
    SELECT job.{id} AS id
      FROM {table} AS job
     WHERE %(id)s::{id_type} IS NULL
       AND {is_queued}
       AND job.{next_earliest_run_at} IS NULL
       AND {wanted}
     ORDER BY job.{next_earliest_run_at}, job.{id}
     LIMIT %(n)s - (SELECT count(*) FROM timed)
       FOR NO KEY UPDATE SKIP LOCKED
),
{picked} AS (
    SELECT id FROM named UNION ALL SELECT id FROM timed UNION ALL SELECT id FROM untimed
)
