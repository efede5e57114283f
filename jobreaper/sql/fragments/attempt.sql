-- The attempt as it was before this statement ends it. Its worker knows how long it waited for its
-- turn after the claim.
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
       FOR NO KEY UPDATE
)
