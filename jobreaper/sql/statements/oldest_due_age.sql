-- Seconds that the oldest due job has waited. Jobs that never had a time do not say since when.
SELECT extract(epoch FROM statement_timestamp() - min(job.{next_earliest_run_at}))::float8
  FROM {table} AS job
 WHERE {is_queued}
   AND job.{next_earliest_run_at} <= statement_timestamp()
   AND isfinite(job.{next_earliest_run_at})
