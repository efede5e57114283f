-- The event is written from the attempt, whose rows are locked by now: joined with the rows updated,
-- 500 jobs cost 500 × 500 comparisons, since the planner takes both for one row.
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT attempt.id::text,
           jsonb_build_object(
               'type', {event_type}::text,
               'table', {table_name}::text,
               'details', jsonb_build_object({attempt_details}),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM attempt
    RETURNING job_id, data
)
