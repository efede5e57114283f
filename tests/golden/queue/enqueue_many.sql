-- Enqueue many jobs at once, and return which were created and which replaced a queued one; without
-- keys, how many were created.
WITH
-- New jobs, their events, and a notification for listening workers. Rows with keys are inserted in the
-- order of these, so that two transactions that create the same jobs wait for each other in the same
-- order. Without keys there is no conflict, and looking for one costs a record of WAL for each row.
given AS MATERIALIZED (
    SELECT *
      FROM jsonb_to_recordset(%(jobs)s::jsonb) AS given (
           id uuid, type text, stage text, queue text, org_id text, payload jsonb, priority smallint,
           max_attempts int, run_at timestamptz, dedupe_key text)
),
made AS (
    INSERT INTO "jobreaper_jobs" AS job (
           id, type, stage, queue, org_id, payload, priority, max_attempts, next_earliest_run_at,
           dedupe_key, traceparent)
    SELECT id, type, stage, queue, org_id, payload, priority, max_attempts,
           coalesce(run_at, statement_timestamp()), dedupe_key, %(traceparent)s
      FROM given
     ORDER BY id
    RETURNING job.*, job.xmax = 0 AS is_new
),
happened (job_id, type, details) AS (
    SELECT made.id::text,
           'job:enqueued'::text,
           jsonb_build_object(
               'type', made.type,
               'stage', made.stage,
               'queue', made.queue,
               'org_id', made.org_id,
               'priority', made.priority,
               'replaced', NOT made.is_new,
               'next_earliest_run_at',
                   to_char(made.next_earliest_run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
      FROM made
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
SELECT count(made.id)
  FROM made
  LEFT JOIN notified ON true
