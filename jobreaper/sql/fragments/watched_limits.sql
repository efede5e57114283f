SELECT {key_as_text} AS job_id,
       {read_stage} AS stage,
       job.{status}::text AS status,
       {read_locked_by} AS locked_by,
       {last_seen_at} AS last_seen_at,
       {last_seen_at} + limits.ttl AS ends_at,
       limits.ttl AS allowed,
       limits.ttl / 2 AS late_after
  FROM {table} AS job
  LEFT JOIN ({limits}) AS limits ON {limit_of_job}
 WHERE {is_processing}
