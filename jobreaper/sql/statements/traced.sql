-- Traced: record the trace context of an attempt, and return that of the previous attempt. A worker
-- that is killed could not do this later.
WITH happened (job_id, type, details) AS (
    SELECT (%(id)s::{id_type})::text,
           {job_traced}::text,
           jsonb_build_object(
               'locked_by', %(worker)s::text,
               'stage', %(stage)s::text,
               'attempt', %(attempt)s::int,
               'epoch', %(epoch)s::bigint,
               'traceparent', %(traceparent)s::text)
),
{event}
SELECT data -> 'details' ->> 'traceparent',
       (data -> 'details' ->> 'attempt')::int,
       (data -> 'details' ->> 'epoch')::bigint
  FROM {job_events}
 WHERE job_id = (%(id)s::{id_type})::text
   AND "table" = {table_name}
   AND type = {job_traced}
 ORDER BY id DESC
 LIMIT 1
