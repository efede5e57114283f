(%(stages)s::text[] IS NULL OR job.{stage} = ANY (%(stages)s::text[]))
AND {of_types}
AND {not_paused}
AND {not_full}
