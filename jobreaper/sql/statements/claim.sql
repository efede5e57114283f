-- Claim: take a lease on one job by its id, or on the next due jobs. The first heartbeat lies a few
-- microseconds before the claim, which is its mark: see retake.sql.
WITH policies AS MATERIALIZED ({policies}),
{due_to_claim},
claimed AS (
    UPDATE {table} AS job
       SET {status} = {processing},
           {locked_by} = %(worker)s,
           {claimed_at} = statement_timestamp(),
           {last_heartbeat_at} = statement_timestamp()
               - %(mark_us)s * interval '1 microsecond',
           {deadline_at} = statement_timestamp() + policy.max_runtime,
           {lease_expires_at} = {lease_end_at_claim},
           {attempt_count} = coalesce(job.{attempt_count}, 0) + 1,
           {lease_epoch} = coalesce(job.{lease_epoch}, 0) + 1
      FROM policies AS policy
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM due))
       AND {policy_of_row}
    RETURNING job.*
)
SELECT {claimed_columns}
  FROM claimed AS job
 ORDER BY {by_priority}job.{next_earliest_run_at}, job.{id}
