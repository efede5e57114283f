-- What a job's function has saved for its next attempt.

-- name: save_state
-- Save it if the lease still stands. If no row is returned, the lease was lost and nothing was
-- written.
WITH held AS MATERIALIZED (
    SELECT job.{id} AS id
      FROM {table} AS job
     WHERE job.{id} = %(id)s::{id_type}
       AND job.{lease_epoch} = %(epoch)s
       AND job.{locked_by}::text = %(worker)s
       AND {is_processing}
       AND {in_session}
       FOR NO KEY UPDATE
)
INSERT INTO jobreaper_states ("table", job_id, state, epoch)
SELECT {table_name}, held.id::text, %(state)s::jsonb, %(epoch)s
  FROM held
ON CONFLICT ("table", job_id) DO UPDATE
   SET state = excluded.state, epoch = excluded.epoch, saved_at = statement_timestamp()
RETURNING true


-- name: read_state
-- Also whether this is the session of the lease; in another one, it may be that of another job.
SELECT {in_session},
       (SELECT state::text
          FROM jobreaper_states
         WHERE "table" = {table_name}
           AND job_id = (%(id)s::{id_type})::text)


-- name: forget_states
-- Forget what jobs have saved that are finished.
DELETE FROM jobreaper_states
 WHERE "table" = {table_name}
   AND {in_session}
   AND job_id = ANY (ARRAY(SELECT id::text FROM unnest(%(ids)s::{id_type}[]) AS id))
RETURNING true
