{is_processing} AND job.{lease_expires_at} >= statement_timestamp()
