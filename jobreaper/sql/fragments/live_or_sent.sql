-- A message on its way will claim its job; more of them would find the stage full. No index knows
-- when a job was sent, but one was due by then: of those that wait, the due ones are read, as in
-- due.sql.
{live}
 UNION ALL
SELECT 1
  FROM {table} AS job
 WHERE job.{stage} = limits.stage
   AND {is_queued}
   AND job.{next_earliest_run_at} <= statement_timestamp()
   AND job.{dispatched_at} >= statement_timestamp() - make_interval(secs => %(again_sec)s)
 UNION ALL
SELECT 1
  FROM {table} AS job
 WHERE job.{stage} = limits.stage
   AND {is_queued}
   AND job.{next_earliest_run_at} IS NULL
   AND job.{dispatched_at} >= statement_timestamp() - make_interval(secs => %(again_sec)s)
