-- Many attempts as they were before this statement ends them. Their worker has measured how long
-- each waited for its turn after the claim, and then ran. A row locked by another transaction is
-- left for later, so that it does not keep the others waiting.
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
       FOR NO KEY UPDATE OF job SKIP LOCKED
)
