-- Retake: the jobs that an earlier try of a claim took whose answer was lost. The mark
-- distinguishes them from other jobs that this worker has claimed.
SELECT {claimed_columns}
  FROM {table} AS job
 WHERE {is_processing}
   AND job.{lease_expires_at} >= statement_timestamp()
   AND job.{locked_by}::text = %(worker)s
   AND job.{claimed_at} >= statement_timestamp() - make_interval(secs => %(since_sec)s)
   AND job.{claimed_at} - job.{last_heartbeat_at} = %(mark_us)s * interval '1 microsecond'
 ORDER BY {by_priority}job.{next_earliest_run_at}, job.{id}
