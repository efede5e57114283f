-- Leases of due jobs.

-- name: claim
-- Claim: take the lease of one job by its id, or of the next due jobs. The first heartbeat is a few
-- microseconds before the claim, which is the claim's mark: see retake.sql.
WITH policies AS MATERIALIZED (
    {policies}
),
{due},
claimed AS (
    UPDATE {table} AS job
       SET {status} = {processing},
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
      FROM policies AS policy
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM due))
       AND {policy_of_row}
    RETURNING job.*
)
SELECT {claimed_columns}
  FROM {look}claimed AS job{on_true}
 WHERE {all_written}
 ORDER BY {by_priority}job.{next_earliest_run_at}, job.{id}


-- name: candidates
-- One by one: the jobs that a claim or a dispatch would take and that were not tried yet, in no
-- order.
WITH
{due}
SELECT id FROM due


-- name: lock_claims
-- Claims of stages with a max_running run one at a time, so that the next one counts the jobs of
-- this one. A worker that is frozen in between loses its session, and the lock with it.
SELECT CASE WHEN %(nested)s THEN '' ELSE
           set_config('lock_timeout', %(timeout)s, true)
           || set_config('idle_in_transaction_session_timeout', %(timeout)s, true) END,
       pg_advisory_xact_lock(hashtext('jobreaper claims'), hashtext(%(table)s))
