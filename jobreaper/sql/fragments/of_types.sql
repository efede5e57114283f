(%(types)s::text[] IS NULL OR job.{type}::text = ANY (%(types)s::text[]))
