-- Create jobs as they stand in another queue, ended ones too, and return the keys of those that are
-- new. One whose key or dedupe key is there already is left out.
WITH
given AS MATERIALIZED (
    SELECT *
      FROM ROWS FROM (jsonb_to_recordset(%(jobs)s::jsonb) AS (
           id uuid, type text, stage text, queue text, org_id text, payload jsonb, priority smallint,
           max_attempts int, run_at timestamptz, dedupe_key text, created_at timestamptz, status text,
           result jsonb, attempts int, worker text, started_at timestamptz, finished_at timestamptz,
           fail_code text, fail_reason text, exception text, traceback text, former_table text,
           former_key text))
           WITH ORDINALITY
),
made AS (
    INSERT INTO {table} AS job (
           id, type, stage, queue, org_id, payload, priority, max_attempts, next_earliest_run_at,
           dedupe_key, created_at, status, result, attempt_count, finished_at, fail_code, fail_reason)
    SELECT id, type, stage, queue, org_id, payload, priority, max_attempts,
           -- What waits keeps its order.
           CASE WHEN status = {queued} THEN
               coalesce(run_at, created_at,
                        statement_timestamp()
                        - (%(number)s - ordinality) * interval '1 microsecond') END,
           dedupe_key, coalesce(created_at, statement_timestamp()), status, result, attempts,
           CASE WHEN status <> {queued} THEN coalesce(finished_at, statement_timestamp()) END,
           fail_code, fail_reason
      FROM given
     ORDER BY dedupe_key COLLATE "C", id
    ON CONFLICT DO NOTHING
    RETURNING job.*
),
happened (job_id, type, details) AS (
    SELECT made.id::text,
           {job_carried_over}::text,
           jsonb_build_object(
               'former_table', given.former_table,
               'former_key', given.former_key,
               'status', made.status,
               'stage', made.stage,
               'attempt', made.attempt_count,
               'locked_by', given.worker,
               'claimed_at', to_char(given.started_at AT TIME ZONE 'UTC', {iso_utc}),
               'exception', given.exception,
               'traceback', given.traceback,
               'next_earliest_run_at',
                   to_char(made.next_earliest_run_at AT TIME ZONE 'UTC', {iso_utc}))
      FROM made
      JOIN given ON given.id = made.id
),
{event},
{notified}
SELECT made.id
  FROM made
  LEFT JOIN notified ON true
