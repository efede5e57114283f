-- Heartbeat: renew all leases that this process holds in one table.
--
-- A row that is locked, for example by the job's own transaction, is skipped; `held` then still
-- says that the lease stands. An epoch below that of the lease means that the claim is not
-- committed yet. A deadline needs no rule of its own, because no lease lasts beyond it; nor does a job
-- that gets nowhere, because none lasts beyond the time at which it has stalled.
WITH policies AS MATERIALIZED (
    {policies}
),
lease AS MATERIALIZED (
    SELECT *
      FROM unnest(%(ids)s::{id_type}[], %(epochs)s::bigint[], %(workers)s::text[])
           WITH ORDINALITY AS lease (id, epoch, worker, place)
),
{reported}
reachable AS MATERIALIZED (
    SELECT job.{id} AS id
      FROM {table} AS job
      JOIN lease ON lease.id = job.{id} AND lease.epoch = job.{lease_epoch}
                AND lease.worker = job.{locked_by}::text
     WHERE {is_processing}
       FOR NO KEY UPDATE OF job SKIP LOCKED
),
renewed AS (
    UPDATE {table} AS job
       SET {last_heartbeat_at} = statement_timestamp(),
           {carries}
           {lease_expires_at} = {renewed_end}
      FROM policies AS policy
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM reachable))
       AND {policy_of_row}
    RETURNING job.{id} AS id, job.{lease_expires_at} AS lease_expires_at{stalls_at_returned}
)
SELECT coalesce({is_processing} AND job.{lease_epoch} = lease.epoch
                    AND job.{locked_by}::text = lease.worker
                OR job.{lease_epoch} < lease.epoch, false) AS held,
       extract(epoch FROM renewed.lease_expires_at - statement_timestamp())::float8
           AS lease_remaining_sec,
       renewed.lease_expires_at,
       job.{status} AS status,
       job.{lease_epoch} AS epoch{stalls_at_renewed}
  FROM lease
  LEFT JOIN renewed ON renewed.id = lease.id
  LEFT JOIN {table} AS job ON job.{id} = lease.id
 WHERE {all_written}
 ORDER BY lease.place
