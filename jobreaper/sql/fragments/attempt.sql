-- The attempt as it was before this statement ends it.
attempt AS MATERIALIZED (
    SELECT {attempt_columns},
           CASE WHEN isfinite(job.{claimed_at}) THEN
               round(extract(epoch FROM statement_timestamp() - job.{claimed_at}) * 1000)::bigint
               END AS duration_ms,
           0 AS claim_to_start_ms
      FROM {table} AS job
     WHERE job.{id} = %(id)s::{id_type}
       AND job.{lease_epoch} = %(epoch)s
       AND job.{locked_by}::text = %(worker)s
       AND {is_processing}
       FOR NO KEY UPDATE
)
