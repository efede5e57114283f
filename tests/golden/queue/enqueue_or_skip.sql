-- Enqueue one job and return it, or the queued or processing job that has its key. If no row is
-- returned, that job ended meanwhile: try again.
WITH
-- New jobs, their events, and a notification for listening workers. Rows with keys are inserted in the
-- order of these, so that two transactions that create the same jobs wait for each other in the same
-- order. Without keys there is no conflict, and looking for one costs a record of WAL for each row.
given AS MATERIALIZED (
    SELECT new.id, kind.type, kind.stage, kind.queue, kind.org_id, new.payload, kind.priority,
           kind.max_attempts, kind.run_at, new.dedupe_key
      FROM ROWS FROM (
               unnest(%(ids)s::uuid[]),
               unnest(%(kinds_of)s::int[]),
               jsonb_array_elements(%(payloads)s::jsonb),
               jsonb_array_elements_text(%(dedupe_keys)s::jsonb)
           ) AS new (id, kind, payload, dedupe_key)
      -- What jobs have in common is sent once. If they are all alike, no row says what it is like.
      JOIN ROWS FROM (
               jsonb_to_recordset(%(kinds)s::jsonb) AS (
                   type text, stage text, queue text, org_id text, priority smallint,
                   max_attempts int, run_at timestamptz)
           ) WITH ORDINALITY AS kind (
               type, stage, queue, org_id, priority, max_attempts, run_at, place)
        ON kind.place = coalesce(new.kind, 1)
),
made AS (
    INSERT INTO "jobreaper_jobs" AS job (
           id, type, stage, queue, org_id, payload, priority, max_attempts, next_earliest_run_at,
           dedupe_key, traceparent)
    SELECT id, type, stage, queue, org_id, payload, priority, max_attempts,
           coalesce(run_at, statement_timestamp()), dedupe_key, %(traceparent)s
      FROM given
     ORDER BY dedupe_key COLLATE "C", id
    ON CONFLICT DO NOTHING
    RETURNING job.*, job.xmax = 0 AS is_new
),
-- Jobs of which there is the same to tell are told of together: the event is written once for all of
-- them, in half the time that it takes to write it for each.
happened (ids, type, details) AS (
    SELECT array_agg(made.id),
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
     GROUP BY made.type, made.stage, made.queue, made.org_id, made.priority, made.is_new,
           made.next_earliest_run_at
),
told AS MATERIALIZED (
    SELECT happened.ids,
           jsonb_build_object(
               'type', happened.type,
               'table', 'jobreaper_jobs'::text,
               'details', happened.details,
               -- In a query of its own, it is written once for all events.
               'at', (SELECT to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))) AS data
      FROM happened
),
event (job_id, data) AS (
    SELECT unnest(told.ids)::text, told.data FROM told
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
SELECT "job"."progress",
       "job"."progress_at",
       "job"."stalls_at",
       "job"."status",
       "job"."stage",
       "job"."locked_by",
       "job"."claimed_at",
       "job"."lease_expires_at",
       "job"."last_heartbeat_at",
       "job"."lease_epoch",
       "job"."attempt_count",
       "job"."max_attempts",
       "job"."reap_count",
       "job"."next_earliest_run_at",
       "job"."expected_duration_ms",
       "job"."deadline_at",
       "job"."finished_at",
       "job"."dispatched_at",
       "job"."fail_code",
       "job"."fail_reason",
       "job"."id",
       "job"."type",
       "job"."priority",
       "job"."queue",
       "job"."org_id",
       "job"."payload",
       "job"."result",
       "job"."dedupe_key",
       "job"."traceparent",
       "job"."created_at",
       "job"."updated_at", job.is_new
  FROM made AS job
  LEFT JOIN notified ON true
UNION ALL
SELECT "job"."progress",
       "job"."progress_at",
       "job"."stalls_at",
       "job"."status",
       "job"."stage",
       "job"."locked_by",
       "job"."claimed_at",
       "job"."lease_expires_at",
       "job"."last_heartbeat_at",
       "job"."lease_epoch",
       "job"."attempt_count",
       "job"."max_attempts",
       "job"."reap_count",
       "job"."next_earliest_run_at",
       "job"."expected_duration_ms",
       "job"."deadline_at",
       "job"."finished_at",
       "job"."dispatched_at",
       "job"."fail_code",
       "job"."fail_reason",
       "job"."id",
       "job"."type",
       "job"."priority",
       "job"."queue",
       "job"."org_id",
       "job"."payload",
       "job"."result",
       "job"."dedupe_key",
       "job"."traceparent",
       "job"."created_at",
       "job"."updated_at", NULL
  FROM "jobreaper_jobs" AS job
 WHERE NOT EXISTS (SELECT FROM made)
   AND job.dedupe_key IS NOT NULL
   AND job.status IN ('queued', 'processing')
   AND sha256(decode(replace(job.dedupe_key, E'\\', E'\\\\'), 'escape')) = (SELECT sha256(decode(replace(dedupe_key, E'\\', E'\\\\'), 'escape')) FROM given)
