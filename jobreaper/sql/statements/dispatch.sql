-- Dispatch: mark due jobs as sent, and return them to be sent. A job sent lately is passed over
-- until its message has expired.
WITH {due_to_dispatch}
UPDATE {table} AS job
   SET dispatched_at = statement_timestamp()
 WHERE job.{id} = ANY (ARRAY(SELECT id FROM due))
RETURNING job.{id}, job.stage, job.dispatched_at
