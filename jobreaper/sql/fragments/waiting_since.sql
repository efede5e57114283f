(SELECT {waiting_since} FROM {table} AS job WHERE {is_queued} AND {range} {in_line} LIMIT {most_in_line})
