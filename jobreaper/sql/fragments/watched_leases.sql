WITH policies AS MATERIALIZED ({policies})
SELECT job.{id}::text AS job_id,
       job.{stage} AS stage,
       job.{status}::text AS status,
       job.{locked_by} AS locked_by,
       seen.at AS last_seen_at,
       coalesce(job.{lease_expires_at}, seen.at + policy.ttl) AS ends_at,
       CASE WHEN isfinite(job.{lease_expires_at}) AND isfinite(seen.at)
            THEN job.{lease_expires_at} - seen.at ELSE policy.ttl END AS allowed,
       make_interval(secs => {late_after_sec}) AS late_after
  FROM {table} AS job
  JOIN policies AS policy ON {policy_of_row}
 CROSS JOIN LATERAL (
       SELECT GREATEST(job.{last_heartbeat_at}, job.{claimed_at}) AS at
       ) AS seen
 WHERE {is_processing}
