(%(types)s::text[] IS NULL OR job.type = ANY (%(types)s::text[]))
