-- The lost jobs, and the verdict on each.

-- name: lost_columns
job.{id} AS id,
job.{stage} AS stage,
job.{locked_by} AS locked_by,
{attempts_of_job} AS attempt_count,
{max_attempts_of_job} AS max_attempts,
coalesce(job.{reap_count}, 0) AS reap_count,
coalesce(job.{lease_epoch}, 0) AS lease_epoch,
job.{claimed_at} AS claimed_at,
job.{last_heartbeat_at} AS last_heartbeat_at,
job.{lease_expires_at} AS lease_expires_at,
job.{deadline_at} AS deadline_at,
{lost_progress}
{is_stalled} AS is_stalled


-- name: verdicts
-- The jobs whose lease ran out, oldest first, and the verdict on each.
--
-- With a limit that the planner cannot see, it reads the index in order. With a limit that it sees,
-- it may read and sort every expired job for each batch.
policies AS MATERIALIZED (
    {policies}
),
expired AS MATERIALIZED (
    SELECT {lost_columns},
           job.{lease_expires_at} AS ended_at,
           NULL::text AS cause,
           NULL::text AS fail_reason
      FROM {among} AS job
     WHERE {is_processing}
       AND job.{lease_expires_at} < statement_timestamp()
       AND (job.{next_earliest_run_at} IS NULL
            OR job.{next_earliest_run_at} <= statement_timestamp()
            OR {attempts_of_job} >= {max_attempts_of_job})
       AND coalesce(GREATEST(job.{last_heartbeat_at}, job.{claimed_at}), '-infinity')
           <= %(silent_by)s::timestamptz
       AND {chosen}
     ORDER BY job.{lease_expires_at}
     LIMIT (SELECT %(batch)s::bigint)
       {lock}
),
-- Running without a lease, from workers older than leases: judged by the last sign of life, and
-- only if there is a time to live. GREATEST, not COALESCE: an old heartbeat, kept from an earlier
-- attempt, must not make a new attempt look dead.
silent AS MATERIALIZED (
    SELECT {lost_columns},
           GREATEST(job.{last_heartbeat_at}, job.{claimed_at}) + policy.ttl AS ended_at,
           NULL::text AS cause,
           NULL::text AS fail_reason
      FROM {among} AS job
      JOIN policies AS policy ON {policy_of_row}
     WHERE (SELECT bool_or(ttl IS NOT NULL) FROM policies)
       AND {is_processing}
       AND job.{lease_expires_at} IS NULL
       AND GREATEST(job.{last_heartbeat_at}, job.{claimed_at}) + policy.ttl < statement_timestamp()
       AND (job.{next_earliest_run_at} IS NULL
            OR job.{next_earliest_run_at} <= statement_timestamp()
            OR {attempts_of_job} >= {max_attempts_of_job})
       AND coalesce(GREATEST(job.{last_heartbeat_at}, job.{claimed_at}), '-infinity')
           <= %(silent_by)s::timestamptz
       AND {chosen}
     LIMIT %(batch)s - (SELECT count(*) FROM expired)
       {lock}
),
lost AS (
    SELECT * FROM expired UNION ALL SELECT * FROM silent
),
{verdict}


-- name: verdict
-- The verdict on each lost job. After a worker that is known to be dead, there is no wait the first
-- time; the second time, the job may be the reason. It is not if the worker had been told to stop: that
-- costs no attempt, and no wait either.
verdict AS MATERIALIZED (
    SELECT job.*,
           why.reason,
           decided.fail_code,
           decided.fail_code IS NULL AS requeues,
           (decided.fail_code IS NULL
            AND (budget.counts_reaps OR why.reason = {worker_stopped}))::int
               AS attempts_given_back,
           (why.reason <> {worker_stopped})::int AS reaps,
           CASE WHEN why.reason = {worker_stopped}
                  OR why.reason = {worker_lost} AND job.reap_count = 0
                THEN statement_timestamp()
                ELSE statement_timestamp() + {backoff} END AS run_again_at,
           -- '-infinity', which a person may write in psql, has no distance from now.
           CASE WHEN isfinite(job.ended_at) THEN
               round(extract(epoch FROM statement_timestamp() - job.ended_at) * 1000)::bigint
               END AS overdue_ms
      FROM lost AS job
      JOIN policies AS policy ON {policy_of_job}
     CROSS JOIN LATERAL (
           SELECT CASE WHEN job.cause IS NOT NULL THEN job.cause
                       WHEN job.deadline_at <= job.lease_expires_at THEN {deadline}
                       WHEN job.is_stalled THEN {stalled}
                       ELSE {lease_expired} END AS reason
           ) AS why
     CROSS JOIN LATERAL (
           SELECT policy.max_reaps IS NOT NULL AND why.reason NOT IN ({deadline}, {stalled})
                      AS counts_reaps,
                  CASE why.reason WHEN {lease_expired} THEN {timeout}
                                  WHEN {worker_stopped} THEN {worker_lost}
                                  ELSE why.reason END AS code
           ) AS budget
     CROSS JOIN LATERAL (
           SELECT CASE
                  WHEN policy.on_expiry = {fail} THEN budget.code
                  WHEN why.reason = {worker_stopped} THEN NULL
                  WHEN budget.counts_reaps THEN
                       CASE WHEN job.reap_count >= policy.max_reaps - 1 THEN {poison} END
                  WHEN job.attempt_count >= job.max_attempts THEN budget.code
                  END AS fail_code
           ) AS decided
)
