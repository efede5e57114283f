coalesce(job.{stage}, '') <> ALL (ARRAY(SELECT stage FROM slots WHERE free <= 0))
