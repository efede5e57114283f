-- Claim: take a lease on one job by its id, or on the next due jobs.
--
-- Retries and scheduled jobs whose time has come go before jobs that never had a time. Two index
-- ranges serve that order; one ORDER BY over both would walk every job scheduled for the future.
-- FOR NO KEY UPDATE lets rows that refer to a job by foreign key be inserted meanwhile.
WITH policies AS MATERIALIZED ({policies}),
named AS MATERIALIZED (
    SELECT {id} AS id
      FROM {table}
     WHERE {id} = %(id)s::{id_type}
       AND status = {queued}
       AND (next_earliest_run_at IS NULL OR next_earliest_run_at <= statement_timestamp())
       FOR NO KEY UPDATE SKIP LOCKED
),
timed AS MATERIALIZED (
    SELECT {id} AS id
      FROM {table}
     WHERE %(id)s::{id_type} IS NULL
       AND status = {queued}
       AND next_earliest_run_at <= statement_timestamp()
       AND (%(stages)s::text[] IS NULL OR stage = ANY (%(stages)s::text[]))
     ORDER BY {priority}next_earliest_run_at, {id}
     LIMIT %(n)s
       FOR NO KEY UPDATE SKIP LOCKED
),
untimed AS MATERIALIZED (
    SELECT {id} AS id
      FROM {table}
     WHERE %(id)s::{id_type} IS NULL
       AND status = {queued}
       AND next_earliest_run_at IS NULL
       AND (%(stages)s::text[] IS NULL OR stage = ANY (%(stages)s::text[]))
     ORDER BY {priority}{id}
     LIMIT %(n)s - (SELECT count(*) FROM timed)
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {table} AS job
   SET status = {processing},
       locked_by = %(worker)s,
       claimed_at = statement_timestamp(),
       last_heartbeat_at = statement_timestamp(),
       deadline_at = statement_timestamp() + policy.max_runtime,
       lease_expires_at = {lease_end_at_claim},
       attempt_count = job.attempt_count + 1,
       lease_epoch = job.lease_epoch + 1
  FROM policies AS policy
 WHERE job.{id} = ANY (ARRAY(SELECT id FROM named
                             UNION ALL SELECT id FROM timed
                             UNION ALL SELECT id FROM untimed))
   AND {policy_of_job}
RETURNING {columns},
          extract(epoch FROM job.lease_expires_at - statement_timestamp())::float8
              AS lease_remaining_sec
