-- Traced: record the trace context of an attempt, and return that of the previous attempt. A worker
-- that is killed could not do this later.
WITH happened (job_id, type, details) AS (
    SELECT (%(id)s::bigint)::text,
           'job:traced'::text,
           jsonb_build_object(
               'locked_by', %(worker)s::text,
               'stage', %(stage)s::text,
               'attempt', %(attempt)s::int,
               'epoch', %(epoch)s::bigint,
               'traceparent', %(traceparent)s::text)
),
event (job_id, data) AS (
    SELECT happened.job_id,
           jsonb_build_object(
               'type', happened.type,
               'table', 'jobs'::text,
               'details', happened.details,
               -- In a query of its own, it is written once for all events.
               'at', (SELECT to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
      FROM happened
),
-- A trigger may keep an event out. Nothing reads here whether it did: the change of the job counts.
recorded AS (
    INSERT INTO job_events (job_id, data)
    SELECT job_id, data FROM event
)
SELECT data -> 'details' ->> 'traceparent',
       (data -> 'details' ->> 'attempt')::int,
       (data -> 'details' ->> 'epoch')::bigint
  FROM job_events
 WHERE job_id = (%(id)s::bigint)::text
   AND "table" = 'jobs'
   AND type = 'job:traced'
 ORDER BY id DESC
 LIMIT 1
