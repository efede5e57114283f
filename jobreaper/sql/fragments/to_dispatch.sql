(job.{dispatched_at} IS NULL
     OR job.{dispatched_at} < statement_timestamp() - make_interval(secs => %(again_sec)s))
AND (%(stages)s::text[] IS NULL OR job.{stage} = ANY (%(stages)s::text[]))
AND {not_paused}
AND {not_full}
