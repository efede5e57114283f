-- The end and the state of a lease.

-- name: lease_end
-- LEAST ignores a NULL deadline. A deadline of '-infinity' becomes a time that every client can
-- read.
GREATEST('epoch', LEAST(
    statement_timestamp() + make_interval(secs => LEAST(
        GREATEST(policy.lease_sec,
                 coalesce(job.{expected_duration_ms}, 0) / 1000.0 * policy.sla_factor),
        {longest_lease_sec})),
    {not_after}))


-- name: lease_state
-- The same as in LeasedJobQuerySet.with_lease_state().
CASE WHEN job.{lease_expires_at} IS NULL THEN {none}
     WHEN job.{lease_expires_at} < statement_timestamp() THEN {expired}
     WHEN job.{last_heartbeat_at} >= statement_timestamp() - make_interval(secs => %(late_sec)s)
     THEN {live}
     ELSE {late} END


-- name: state_by_limit
-- For a table without leases: a job without a time to live is never reclaimed.
CASE WHEN {last_seen_at} < statement_timestamp() - limits.ttl THEN {expired}
     WHEN {last_seen_at} >= statement_timestamp() - limits.ttl THEN {live}
     ELSE {none} END


-- name: held_epoch
-- Without an epoch, the worker's name is the proof.
held_epoch bigint := coalesce({function}.epoch, (
    SELECT job.{lease_epoch}
      FROM {table} AS job
     WHERE job.{id} = {function}.job_id
       AND job.{locked_by} = {function}.worker
       AND {is_processing}))
