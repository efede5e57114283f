-- The jobs whose lease ran out, oldest first, and the verdict on each.
policies AS MATERIALIZED ({policies}),
expired AS MATERIALIZED (
    SELECT job.{id} AS id, job.stage, job.locked_by, job.attempt_count, job.max_attempts,
           job.reap_count, job.lease_epoch, job.lease_expires_at, job.deadline_at,
           job.lease_expires_at AS ended_at, NULL::text AS cause, NULL::text AS fail_reason
      FROM {table} AS job
     WHERE job.status = {processing}
       AND job.lease_expires_at < statement_timestamp()
       AND (job.next_earliest_run_at IS NULL
            OR job.next_earliest_run_at <= statement_timestamp()
            OR job.attempt_count >= job.max_attempts)
       AND {chosen}
     ORDER BY job.lease_expires_at
     LIMIT %(batch)s
       {lock}
),
-- Running without a lease, as workers from before leases do: judged by the last sign of life, and
-- only where a time to live says so. GREATEST, not COALESCE: a heartbeat kept from an earlier
-- attempt must not condemn a fresh one.
silent AS MATERIALIZED (
    SELECT job.{id} AS id, job.stage, job.locked_by, job.attempt_count, job.max_attempts,
           job.reap_count, job.lease_epoch, job.lease_expires_at, job.deadline_at,
           GREATEST(job.last_heartbeat_at, job.claimed_at) + policy.ttl AS ended_at,
           NULL::text AS cause, NULL::text AS fail_reason
      FROM {table} AS job
      JOIN policies AS policy ON {policy_of_job}
     WHERE (SELECT bool_or(ttl IS NOT NULL) FROM policies)
       AND job.status = {processing}
       AND job.lease_expires_at IS NULL
       AND GREATEST(job.last_heartbeat_at, job.claimed_at) + policy.ttl < statement_timestamp()
       AND (job.next_earliest_run_at IS NULL
            OR job.next_earliest_run_at <= statement_timestamp()
            OR job.attempt_count >= job.max_attempts)
       AND {chosen}
     LIMIT %(batch)s - (SELECT count(*) FROM expired)
       {lock}
),
lost AS (
    SELECT * FROM expired UNION ALL SELECT * FROM silent
),
{verdict}
