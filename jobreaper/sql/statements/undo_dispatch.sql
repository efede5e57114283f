-- The broker did not take these messages: they are to be sent again as soon as it does.
UPDATE {table} AS job
   SET {dispatched_at} = NULL
  FROM unnest(%(ids)s::{id_type}[], %(dispatched_at)s::timestamptz[]) AS unsent (id, dispatched_at)
 WHERE job.{id} = unsent.id
   AND {is_queued}
   AND job.{dispatched_at} = unsent.dispatched_at
RETURNING job.{id}
