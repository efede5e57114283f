released AS (
    UPDATE {table} AS job
       SET {status} = {queued},
           {attempt_count} = GREATEST(job.{attempt_count} - 1, 0),
           {unlock}
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM attempt))
),
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT attempt.id::text,
           jsonb_build_object(
               'type', {job_released}::text,
               'table', {table_name}::text,
               'details', jsonb_build_object({attempt_details}),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM attempt
    RETURNING job_id, data
)
