-- Finish: the work is done. No row back means that the lease was lost and nothing was written.
WITH {attempt},
finished AS (
    UPDATE {table} AS job
       SET {status} = {success},
           {finished_at} = statement_timestamp(),
           {fail_code} = NULL,
           {fail_reason} = NULL,
           {unlock}
      FROM attempt
     WHERE job.{id} = attempt.id
    RETURNING attempt.id
),
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT attempt.id::text,
           jsonb_build_object(
               'type', {job_finished}::text,
               'table', {table_name}::text,
               'details', jsonb_build_object({attempt_details}),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM finished JOIN attempt USING (id)
    RETURNING data
)
SELECT data::text FROM event
