-- Tables judged by the last sign of life, and what the views show.

-- name: stale
stale AS MATERIALIZED (
    SELECT {key_columns},
           {key_as_text} AS job_id,
           {read_stage} AS stage,
           {read_locked_by} AS locked_by,
           {attempts_of_job} AS attempt_count,
           {max_attempts_of_job} AS max_attempts,
           {read_claimed_at} AS claimed_at,
           {last_seen_at} AS last_seen_at,
           limits.ttl
      FROM {among} AS job
      JOIN ({limits}) AS limits ON {limit_of_job}
     WHERE {is_processing}
       AND {last_seen_at} < statement_timestamp() - limits.ttl
       AND {last_seen_at} <= %(silent_by)s::timestamptz
       AND {chosen}
     ORDER BY {last_seen_at}
     LIMIT %(batch)s
       {lock}
),
verdict AS MATERIALIZED (
    SELECT stale.*,
           stale.{key_of_verdict} AS id,
           {lease_expired}::text AS reason,
           0 AS lease_epoch,
           decided.requeues,
           CASE WHEN NOT decided.requeues THEN {timeout} END AS fail_code,
           statement_timestamp() AS run_again_at,
           CASE WHEN isfinite(stale.last_seen_at) THEN
               round(extract(epoch FROM statement_timestamp() - stale.last_seen_at - stale.ttl)
                     * 1000)::bigint END AS overdue_ms,
           {note} || ': Exceeded TTL (' || allowed.in_words || ')'
               || CASE WHEN stale.attempt_count >= stale.max_attempts
                       THEN ' - Max attempts reached' ELSE '' END AS note
      FROM stale
     CROSS JOIN LATERAL (
           SELECT {on_expiry} <> {fail} AND stale.attempt_count < stale.max_attempts AS requeues
           ) AS decided
     CROSS JOIN LATERAL (
           SELECT extract(epoch FROM stale.ttl) AS sec
           ) AS allowance
     CROSS JOIN LATERAL (
           SELECT CASE WHEN allowance.sec >= 60 AND mod(allowance.sec, 60) = 0
                       THEN trunc(allowance.sec / 60)::text || ' min'
                       ELSE allowance.sec::float8::text || ' s' END AS in_words
           ) AS allowed
)


-- name: watched_leases
WITH policies AS MATERIALIZED (
    {policies}
)
SELECT job.{id}::text AS job_id,
       job.{stage} AS stage,
       job.{status}::text AS status,
       job.{locked_by} AS locked_by,
       seen.at AS last_seen_at,
       coalesce(job.{lease_expires_at}, seen.at + policy.ttl) AS ends_at,
       CASE WHEN isfinite(job.{lease_expires_at}) AND isfinite(seen.at)
            THEN job.{lease_expires_at} - seen.at ELSE policy.ttl END AS allowed,
       make_interval(secs => {late_after_sec}) AS late_after,
       {progress_columns}
  FROM {table} AS job
  JOIN policies AS policy ON {policy_of_row}
 CROSS JOIN LATERAL (
       SELECT GREATEST(job.{last_heartbeat_at}, job.{claimed_at}) AS at
       ) AS seen
 WHERE {is_processing}


-- name: watched_limits
SELECT {key_as_text} AS job_id,
       {read_stage} AS stage,
       job.{status}::text AS status,
       {read_locked_by} AS locked_by,
       {last_seen_at} AS last_seen_at,
       {last_seen_at} + limits.ttl AS ends_at,
       limits.ttl AS allowed,
       limits.ttl / 2 AS late_after,
       {progress_columns}
  FROM {table} AS job
  LEFT JOIN ({limits}) AS limits ON {limit_of_job}
 WHERE {is_processing}
