-- A worker's three endings: finish, fail, release.

-- name: end
-- End an attempt: finish, fail or release it. If no row is returned, the lease was lost and nothing
-- was written.
WITH
{policies}
-- The attempt before this statement ends it. Its worker knows how long it waited for its turn after
-- the claim.
attempt AS MATERIALIZED (
    SELECT {attempt_columns},
           CASE WHEN isfinite(job.{claimed_at}) THEN
               round(GREATEST(
                   extract(epoch FROM statement_timestamp() - job.{claimed_at}) * 1000
                   - %(waited_ms)s::float8, 0))::bigint
               END AS duration_ms,
           %(waited_ms)s::float8 AS claim_to_start_ms
      FROM {table} AS job
     WHERE job.{id} = %(id)s::{id_type}
       AND job.{lease_epoch} = %(epoch)s
       AND job.{locked_by}::text = %(worker)s
       AND {is_processing}
       AND {in_session}
       FOR NO KEY UPDATE
),
{ended},
{event}
SELECT data::text FROM event


-- name: end_many
-- End many attempts of one worker: finish, fail or release them. Return those that were not ended,
-- and whether their lease still stands, which means that the row was locked. If requested, also
-- return the events of the others.
WITH
{policies}
-- The attempts before this statement ends them. Their worker has measured how long each waited for
-- its turn after the claim, and how long it ran. A row that another transaction has locked is left
-- for later, so that the others do not wait for it.
ending AS MATERIALIZED (
    SELECT *
      FROM unnest(%(ids)s::{id_type}[], %(epochs)s::bigint[], %(waited_ms)s::float8[],
                  %(ran_ms)s::float8[]) AS ending (id, epoch, waited_ms, ran_ms)
),
attempt AS MATERIALIZED (
    SELECT {attempt_columns},
           round(ending.ran_ms)::bigint AS duration_ms,
           ending.waited_ms AS claim_to_start_ms
      FROM {table} AS job
      JOIN ending ON ending.id = job.{id} AND ending.epoch = job.{lease_epoch}
     WHERE job.{id} = ANY (%(ids)s::{id_type}[])
       AND job.{locked_by}::text = %(worker)s
       AND {is_processing}
       AND {in_session}
       FOR NO KEY UPDATE OF job SKIP LOCKED
),
{ended},
{event},
unended AS (
    SELECT ending.id,
           (SELECT {is_processing}
              FROM {table} AS job
             WHERE job.{id} = ending.id
               AND job.{lease_epoch} = ending.epoch
               AND job.{locked_by}::text = %(worker)s) AS held
      FROM ending
     WHERE ending.id NOT IN (SELECT id FROM attempt)
)
SELECT id::text, coalesce(held, false), NULL FROM unended
 UNION ALL
SELECT job_id, NULL, data::text FROM event WHERE %(details)s
