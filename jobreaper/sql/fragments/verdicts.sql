-- The jobs whose lease ran out, oldest first, and what becomes of each.
policies AS MATERIALIZED ({policies}),
expired AS MATERIALIZED (
    SELECT job.{id} AS id, job.stage, job.locked_by, job.attempt_count, job.max_attempts,
           job.reap_count, job.lease_epoch, job.lease_expires_at, job.deadline_at,
           job.lease_expires_at AS ended_at
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
           GREATEST(job.last_heartbeat_at, job.claimed_at) + policy.ttl AS ended_at
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
verdict AS MATERIALIZED (
    SELECT job.*,
           why.reason,
           decided.fail_code,
           decided.fail_code IS NULL AS requeues,
           (decided.fail_code IS NULL AND budget.counts_reaps)::int AS attempts_given_back,
           statement_timestamp() + {backoff} AS run_again_at,
           round(extract(epoch FROM statement_timestamp() - job.ended_at) * 1000)::bigint
               AS overdue_ms
      FROM lost AS job
      JOIN policies AS policy ON {policy_of_job}
     CROSS JOIN LATERAL (
           SELECT CASE WHEN job.deadline_at <= job.lease_expires_at
                       THEN {deadline} ELSE {lease_expired} END AS reason
           ) AS why
     CROSS JOIN LATERAL (
           SELECT policy.max_reaps IS NOT NULL AND why.reason = {lease_expired} AS counts_reaps,
                  CASE why.reason WHEN {deadline} THEN {deadline} ELSE {timeout} END AS code
           ) AS budget
     CROSS JOIN LATERAL (
           SELECT CASE
                  WHEN policy.on_expiry = {fail} THEN budget.code
                  WHEN budget.counts_reaps THEN
                       CASE WHEN job.reap_count + 1 >= policy.max_reaps THEN {poison} END
                  WHEN job.attempt_count >= job.max_attempts THEN budget.code
                  END AS fail_code
           ) AS decided
)
