SELECT job.{id}::text AS job_id,
       job.{stage} AS stage,
       job.{status} AS status,
       job.{locked_by} AS locked_by,
       GREATEST(job.{last_heartbeat_at}, job.{claimed_at}) AS last_seen_at,
       job.{lease_expires_at} - GREATEST(job.{last_heartbeat_at}, job.{claimed_at}) AS allowed,
       make_interval(secs => {late_after_sec}) AS late_after
  FROM {table} AS job
 WHERE {is_processing}
