(%(stages)s::text[] IS NULL OR job.{stage} = ANY (%(stages)s::text[]))
