-- The attempt as it was before this statement ends it.
attempt AS MATERIALIZED (
    SELECT job.{id} AS id,
           job.{locked_by} AS locked_by,
           job.{stage} AS stage,
           job.{attempt_count} AS attempt_count,
           job.{max_attempts} AS max_attempts,
           job.{lease_epoch} AS lease_epoch,
           job.{claimed_at} AS claimed_at,
           round(extract(epoch FROM statement_timestamp() - job.{claimed_at}) * 1000)::bigint
               AS duration_ms
      FROM {table} AS job
     WHERE job.{id} = %(id)s::{id_type}
       AND job.{lease_epoch} = %(epoch)s
       AND {is_processing}
       FOR NO KEY UPDATE
)
