-- Release: give the job back unharmed. The attempt does not count.
WITH {attempt},
released AS (
    UPDATE {table} AS job
       SET {status} = {queued},
           {attempt_count} = GREATEST(job.{attempt_count} - 1, 0),
           {unlock}
      FROM attempt
     WHERE job.{id} = attempt.id
    RETURNING attempt.id
),
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT attempt.id::text,
           jsonb_build_object(
               'type', {job_released}::text,
               'table', {table_name}::text,
               'details', jsonb_build_object({attempt_details}),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM released JOIN attempt USING (id)
    RETURNING data
)
SELECT data::text FROM event
