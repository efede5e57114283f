-- New jobs, the event of each, and a word to the workers that listen. Rows go in in the order of
-- their keys, so that two transactions which make the same jobs wait for each other in one order.
given AS MATERIALIZED (
    SELECT *
      FROM jsonb_to_recordset(%(jobs)s::jsonb) AS given (
           id uuid, type text, stage text, org_id text, payload jsonb, priority smallint,
           max_attempts int, run_at timestamptz, dedupe_key text)
),
made AS (
    INSERT INTO {table} AS job (
           id, type, stage, org_id, payload, priority, max_attempts, next_earliest_run_at,
           dedupe_key, traceparent)
    SELECT id, type, stage, org_id, payload, priority, max_attempts,
           coalesce(run_at, statement_timestamp()), dedupe_key, %(traceparent)s
      FROM given
     ORDER BY dedupe_key COLLATE "C", id
    ON CONFLICT {on_conflict}
    RETURNING job.*, job.xmax = 0 AS is_new
),
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT made.id::text,
           jsonb_build_object(
               'type', {job_enqueued}::text,
               'table', {table_name}::text,
               'details', jsonb_build_object(
                   'type', made.type,
                   'stage', made.stage,
                   'org_id', made.org_id,
                   'priority', made.priority,
                   'replaced', NOT made.is_new,
                   'next_earliest_run_at',
                       to_char(made.next_earliest_run_at AT TIME ZONE 'UTC', {iso_utc})),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM made
),
notified AS MATERIALIZED (
    SELECT pg_notify({table_name}, '')
      FROM made
     WHERE made.next_earliest_run_at <= statement_timestamp()
     LIMIT 1
)
