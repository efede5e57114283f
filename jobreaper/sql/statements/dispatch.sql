-- Dispatch: mark due jobs as sent, and return them in the order they are to be sent. A job sent
-- lately is passed over until its message has expired.
WITH {due_to_dispatch},
marked AS (
    UPDATE {table} AS job
       SET {dispatched_at} = statement_timestamp()
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM due))
    RETURNING job.*
)
SELECT job.{id}, job.{stage}, job.{dispatched_at}
  FROM marked AS job
 ORDER BY {by_priority}job.{next_earliest_run_at}, job.{id}
