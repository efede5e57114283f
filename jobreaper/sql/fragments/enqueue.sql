-- New jobs, and what happens to a queued one with the same key.

-- name: enqueued
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
    INSERT INTO {table} AS job (
           id, type, stage, queue, org_id, payload, priority, max_attempts, next_earliest_run_at,
           dedupe_key, traceparent)
    SELECT id, type, stage, queue, org_id, payload, priority, max_attempts,
           coalesce(run_at, statement_timestamp()), dedupe_key, %(traceparent)s
      FROM given
     ORDER BY {by_key}id
    {on_conflict}
    RETURNING {returned}, job.xmax = 0 AS is_new
),
-- Jobs of which there is the same to tell are told of together: the event is written once for all of
-- them, in half the time that it takes to write it for each.
happened (ids, type, details) AS (
    SELECT array_agg(made.id),
           {job_enqueued}::text,
           jsonb_build_object(
               'type', made.type,
               'stage', made.stage,
               'queue', made.queue,
               'org_id', made.org_id,
               'priority', made.priority,
               'replaced', NOT made.is_new,
               'next_earliest_run_at',
                   to_char(made.next_earliest_run_at AT TIME ZONE 'UTC', {iso_utc}))
      FROM made
     GROUP BY made.type, made.stage, made.queue, made.org_id, made.priority, made.is_new,
           made.next_earliest_run_at
),
told AS MATERIALIZED (
    SELECT happened.ids,
           {event_data} AS data
      FROM happened
),
event (job_id, data) AS (
    SELECT unnest(told.ids)::text, told.data FROM told
),
{recorded},
{notified}


-- name: notified
notified AS MATERIALIZED (
    SELECT pg_notify({table_name}, '')
      FROM made
     WHERE %(notify)s
       AND made.next_earliest_run_at <= statement_timestamp()
       -- A queue that is full fails the COMMIT of whoever notifies, and the job with it. One stuck
       -- listener fills it; the others look for jobs by themselves.
       AND pg_notification_queue_usage() < 0.5
     LIMIT 1
)


-- name: or_existing
 UNION ALL
SELECT {columns}, NULL
  FROM {table} AS job
 WHERE NOT EXISTS (SELECT FROM made)
   AND job.dedupe_key IS NOT NULL
   AND job.status IN ({queued}, {processing})
   AND {digest_of_job} = (SELECT {digest} FROM given)


-- name: or_skip
ON CONFLICT DO NOTHING


-- name: or_replace
ON CONFLICT ({digest}) WHERE dedupe_key IS NOT NULL AND status IN ({queued}, {processing})
DO UPDATE SET payload = excluded.payload,
              priority = excluded.priority,
              next_earliest_run_at = excluded.next_earliest_run_at,
              traceparent = excluded.traceparent,
              dispatched_at = NULL,
              updated_at = statement_timestamp()
        WHERE job.status = {queued}
