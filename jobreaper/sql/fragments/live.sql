SELECT 1
  FROM {table} AS job
 WHERE job.{stage} = limits.stage
   AND {is_processing}
   AND job.{lease_expires_at} >= statement_timestamp()
