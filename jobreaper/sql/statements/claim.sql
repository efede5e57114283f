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
       SET {begun}
      FROM policies AS policy
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM due))
       AND {policy_of_row}
    RETURNING job.*
)
SELECT {claimed_columns}
  FROM {look}claimed AS job{on_true}
 WHERE {all_written}
 ORDER BY {by_priority}job.{next_earliest_run_at}, job.{id}


-- name: claim_one
-- Take the lease of one job by its id. Only the policy of its own stage is read: to read all of them
-- takes a tenth of a claim that was planned before.
WITH
{due},
claimed AS (
    UPDATE {table} AS job
       SET {begun}
      FROM named
     CROSS JOIN LATERAL (
           {policy_of_named}
           ) AS policy
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM due))
    RETURNING job.*
)
SELECT {claimed_columns}
  FROM claimed AS job
 WHERE {all_written}


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
