(SELECT job.{lease_epoch} FROM {table} AS job
  WHERE job.{id} = {function}.job_id AND job.{locked_by} = {function}.worker AND {is_processing})
