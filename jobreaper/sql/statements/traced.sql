-- Traced: put the trace context of an attempt on record, and return that of the attempt before it.
-- A worker that is killed cannot do it later.
WITH event AS (
    INSERT INTO job_events (job_id, data)
    SELECT (%(id)s::{id_type})::text,
           jsonb_build_object(
               'type', {job_traced}::text,
               'table', {table_name}::text,
               'details', jsonb_build_object(
                   'locked_by', %(worker)s::text,
                   'stage', %(stage)s::text,
                   'attempt', %(attempt)s::int,
                   'epoch', %(epoch)s::bigint,
                   'traceparent', %(traceparent)s::text),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
)
SELECT data -> 'details' ->> 'traceparent',
       (data -> 'details' ->> 'attempt')::int,
       (data -> 'details' ->> 'epoch')::bigint
  FROM job_events
 WHERE job_id = (%(id)s::{id_type})::text
   AND "table" = {table_name}
   AND type = {job_traced}
 ORDER BY id DESC
 LIMIT 1
