-- The end and the state of a lease.
--
-- In an end, LEAST ignores a NULL deadline, and GREATEST makes a deadline of '-infinity' a time that
-- every client can read.

-- name: begun
{status} = {processing},
{touched}
{begins_unreported}
{locked_by} = %(worker)s,
{claimed_at} = statement_timestamp(),
{last_heartbeat_at} = statement_timestamp()
    - %(mark_us)s * interval '1 microsecond',
{deadline_at} = statement_timestamp() + policy.max_runtime,
{lease_expires_at} = {lease_end},
{attempt_count} = coalesce(job.{attempt_count}, 0) + 1,
{lease_epoch} = coalesce(job.{lease_epoch}, 0) + 1


-- name: lease_length
make_interval(secs => LEAST(
    GREATEST(policy.lease_sec,
             coalesce(job.{expected_duration_ms}, 0) / 1000.0 * policy.sla_factor),
    {longest_lease_sec}))


-- name: lease_end
GREATEST('epoch', LEAST(
    statement_timestamp()
    + {length},
    {not_after}))


-- name: renewed_end
-- An index contains the end of a lease, so to move it costs three times as much as to write the time
-- of the heartbeat alone. So a heartbeat sets the end somewhat further than needed, and then leaves it
-- alone until less than a lease is left. A lease never ends sooner than its length after a heartbeat.
(SELECT CASE WHEN job.{lease_expires_at} BETWEEN ends.soonest AND ends.latest
             THEN job.{lease_expires_at}
             ELSE ends.latest END
   FROM (SELECT {length} AS length) AS its
  CROSS JOIN LATERAL (
        SELECT {soonest_end} AS soonest,
               {latest_end} AS latest
        ) AS ends)


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
