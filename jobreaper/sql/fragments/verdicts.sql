-- The jobs whose lease ran out, oldest first, and the verdict on each.
--
-- A limit that the planner cannot see makes it walk the index in order; one that it sees may make it
-- read and sort every expired job for each batch.
policies AS MATERIALIZED ({policies}),
expired AS MATERIALIZED (
    SELECT {lost_columns},
           job.{lease_expires_at} AS ended_at,
           NULL::text AS cause,
           NULL::text AS fail_reason
      FROM {table} AS job
     WHERE {is_processing}
       AND job.{lease_expires_at} < statement_timestamp()
       AND (job.{next_earliest_run_at} IS NULL
            OR job.{next_earliest_run_at} <= statement_timestamp()
            OR {attempts_of_job} >= {max_attempts_of_job})
       AND {chosen}
     ORDER BY {order}
     LIMIT (SELECT %(batch)s::bigint)
       {lock}
),
-- Running without a lease, as workers from before leases do: judged by the last sign of life, and
-- only where a time to live says so. GREATEST, not COALESCE: a heartbeat kept from an earlier
-- attempt must not condemn a fresh one.
silent AS MATERIALIZED (
    SELECT {lost_columns},
           GREATEST(job.{last_heartbeat_at}, job.{claimed_at}) + policy.ttl AS ended_at,
           NULL::text AS cause,
           NULL::text AS fail_reason
      FROM {table} AS job
      JOIN policies AS policy ON {policy_of_row}
     WHERE (SELECT bool_or(ttl IS NOT NULL) FROM policies)
       AND {is_processing}
       AND job.{lease_expires_at} IS NULL
       AND GREATEST(job.{last_heartbeat_at}, job.{claimed_at}) + policy.ttl < statement_timestamp()
       AND (job.{next_earliest_run_at} IS NULL
            OR job.{next_earliest_run_at} <= statement_timestamp()
            OR {attempts_of_job} >= {max_attempts_of_job})
       AND {chosen}
     LIMIT %(batch)s - (SELECT count(*) FROM expired)
       {lock}
),
lost AS (
    SELECT * FROM expired UNION ALL SELECT * FROM silent
),
{verdict}
