-- A message on its way will claim its job; more of them would find the stage full.
({is_processing} AND job.{lease_expires_at} >= statement_timestamp()
 OR {is_queued}
    AND job.{dispatched_at} >= statement_timestamp() - make_interval(secs => %(again_sec)s))
