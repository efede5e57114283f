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
    INSERT INTO "jobreaper_jobs" AS job (
           id, type, stage, queue, org_id, payload, priority, max_attempts, next_earliest_run_at,
           dedupe_key, created_at, status, result, attempt_count, finished_at, fail_code, fail_reason)
    SELECT id, type, stage, queue, org_id, payload, priority, max_attempts,
           -- What waits keeps its order.
           CASE WHEN status = 'queued' THEN
               coalesce(run_at, created_at,
                        statement_timestamp()
                        - (%(number)s - ordinality) * interval '1 microsecond') END,
           dedupe_key, coalesce(created_at, statement_timestamp()), status, result, attempts,
           CASE WHEN status <> 'queued' THEN coalesce(finished_at, statement_timestamp()) END,
           fail_code, fail_reason
      FROM given
     ORDER BY dedupe_key COLLATE "C", id
    ON CONFLICT DO NOTHING
    RETURNING job.*
),
happened (job_id, type, details) AS (
    SELECT made.id::text,
           'job:carried_over'::text,
           jsonb_build_object(
               'former_table', given.former_table,
               'former_key', given.former_key,
               'status', made.status,
               'stage', made.stage,
               'attempt', made.attempt_count,
               'locked_by', given.worker,
               'claimed_at', to_char(given.started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'exception', given.exception,
               'traceback', given.traceback,
               'next_earliest_run_at',
                   to_char(made.next_earliest_run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
      FROM made
      JOIN given ON given.id = made.id
),
event (job_id, data) AS (
    SELECT happened.job_id,
           jsonb_build_object(
               'type', happened.type,
               'table', 'jobreaper_jobs'::text,
               'details', happened.details,
               -- In a query of its own, it is written once for all events.
               'at', (SELECT to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
      FROM happened
),
-- A trigger may keep an event out. Nothing reads here whether it did: the change of the job counts.
recorded AS (
    INSERT INTO job_events (job_id, data)
    SELECT job_id, data FROM event
),
notified AS MATERIALIZED (
    SELECT pg_notify('jobreaper_jobs', '')
      FROM made
     WHERE %(notify)s
       AND made.next_earliest_run_at <= statement_timestamp()
       -- A queue that is full fails the COMMIT of whoever notifies, and the job with it. One stuck
       -- listener fills it; the others look for jobs by themselves.
       AND pg_notification_queue_usage() < 0.5
     LIMIT 1
)
SELECT made.id
  FROM made
  LEFT JOIN notified ON true
