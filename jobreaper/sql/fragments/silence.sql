-- Workers that fell silent together.

-- name: seen_by_lease
-- When each worker was last seen, by the leases that it holds, and within how many seconds it should
-- have been seen again: half a lease, or one and a half heartbeat intervals. Seconds, because they may
-- be infinite. A deadline ends the lease of a healthy worker, and so does a job that has stalled.
SELECT job.{locked_by}::text AS worker,
       seen.at AS seen_at,
       LEAST((extract(epoch FROM job.{lease_expires_at}::timestamptz)
              - extract(epoch FROM seen.at)) / 2,
             1.5 * %(heartbeat_sec)s::numeric) AS pace_sec,
       job.{lease_expires_at} < statement_timestamp()
       AND job.{lease_expires_at} > statement_timestamp() - {recently} AS is_due
  FROM {table} AS job
 CROSS JOIN LATERAL (
       SELECT GREATEST(job.{last_heartbeat_at}, job.{claimed_at})::timestamptz AS at
       ) AS seen
 WHERE {is_processing}
   AND job.{lease_expires_at} IS NOT NULL
   AND (job.{deadline_at} <= job.{lease_expires_at}
        AND job.{lease_expires_at} < statement_timestamp()) IS NOT TRUE
   {unless_stalled}


-- name: seen_by_limit
-- The same for a table without leases: its workers send heartbeats at a pace of their own.
SELECT {read_locked_by} AS worker,
       {last_seen_at}::timestamptz AS seen_at,
       extract(epoch FROM limits.ttl) / 2 AS pace_sec,
       {last_seen_at} < statement_timestamp() - limits.ttl
       AND {last_seen_at} > statement_timestamp() - limits.ttl - {recently} AS is_due
  FROM {table} AS job
  JOIN ({limits}) AS limits ON {limit_of_job}
 WHERE {is_processing}


-- name: recently
-- What ended before has no part in what happens now, whatever could be recorded of it.
make_interval(secs => %(grace_sec)s + 3600)


-- name: workers_seen
workers AS MATERIALIZED (
    SELECT worker,
           count(*) AS leases,
           max(seen_at) AS seen_at,
           extract(epoch FROM statement_timestamp()) - extract(epoch FROM max(seen_at))
               > min(pace_sec) AS is_silent,
           bool_or(is_due) AS is_due
      FROM seen
     GROUP BY worker
)


-- name: common_silence
-- The decision of hold.common_silence().
span AS (
    SELECT count(*) OVER together AS workers,
           sum(leases) OVER together AS leases,
           count(*) FILTER (WHERE is_due) OVER together AS due
      FROM workers
     WHERE is_silent
       AND {is_new}
    WINDOW together AS (
           ORDER BY seen_at
           RANGE BETWEEN CURRENT ROW
                     AND make_interval(secs => %(heartbeat_sec)s) FOLLOWING)
),
common AS (
    SELECT span.workers, well.workers AS well
      FROM span
     CROSS JOIN (SELECT count(*) AS workers, coalesce(sum(leases), 0) AS leases
                   FROM workers
                  WHERE NOT is_silent) AS well
     WHERE span.due > 0
       AND span.workers >= {least_workers}
       AND span.leases >= {least_together}
       AND (span.workers > well.workers OR span.leases > well.leases)
     ORDER BY span.workers DESC
     LIMIT 1
)


-- name: look_around
-- Inside a function that runs a pass: only if there is anything to reap.
IF silent_by = 'infinity' AND EXISTS (
    {any_verdict}
) THEN
    {look}
    INTO silent_by, reason_to_hold, silent_until;
END IF;
