{columns},
       extract(epoch FROM job.{lease_expires_at} - statement_timestamp())::float8
           AS lease_remaining_sec
