-- A message that finds its stage full gives its place back, so that another can be sent.
sent_in_vain AS (
    UPDATE {table} AS job
       SET {dispatched_at} = NULL
     WHERE job.{id} = %(id)s::{id_type}
       AND {is_queued}
       AND job.{stage} = ANY (ARRAY(SELECT stage FROM slots WHERE free <= 0))
),
