-- LEAST passes over a NULL deadline. One of '-infinity' becomes a time that every client can read.
GREATEST('epoch', LEAST(
    statement_timestamp() + make_interval(secs => LEAST(
        GREATEST(policy.lease_sec,
                 coalesce(job.{expected_duration_ms}, 0) / 1000.0 * policy.sla_factor),
        {longest_lease_sec})),
    {not_after}))
