-- What becomes of each lost job. A worker known to be dead is no reason to wait the first time: the
-- second time it may have been the job's fault.
verdict AS MATERIALIZED (
    SELECT job.*,
           why.reason,
           decided.fail_code,
           decided.fail_code IS NULL AS requeues,
           (decided.fail_code IS NULL AND budget.counts_reaps)::int AS attempts_given_back,
           CASE WHEN why.reason = {worker_lost} AND job.reap_count = 0
                THEN statement_timestamp()
                ELSE statement_timestamp() + {backoff} END AS run_again_at,
           -- '-infinity', as a person at psql may write it, is no distance from now.
           CASE WHEN isfinite(job.ended_at) THEN
               round(extract(epoch FROM statement_timestamp() - job.ended_at) * 1000)::bigint
               END AS overdue_ms
      FROM lost AS job
      JOIN policies AS policy ON {policy_of_job}
     CROSS JOIN LATERAL (
           SELECT CASE WHEN job.cause IS NOT NULL THEN job.cause
                       WHEN job.deadline_at <= job.lease_expires_at THEN {deadline}
                       ELSE {lease_expired} END AS reason
           ) AS why
     CROSS JOIN LATERAL (
           SELECT policy.max_reaps IS NOT NULL AND why.reason <> {deadline} AS counts_reaps,
                  CASE why.reason WHEN {lease_expired} THEN {timeout} ELSE why.reason END AS code
           ) AS budget
     CROSS JOIN LATERAL (
           SELECT CASE
                  WHEN policy.on_expiry = {fail} THEN budget.code
                  WHEN budget.counts_reaps THEN
                       CASE WHEN job.reap_count >= policy.max_reaps - 1 THEN {poison} END
                  WHEN job.attempt_count >= job.max_attempts THEN budget.code
                  END AS fail_code
           ) AS decided
)
