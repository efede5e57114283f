-- Reject: record that a verb of a worker that lost its lease wrote nothing. In another session than
-- the lease's, it wrote nothing for that reason.
--
-- After a lost connection, the worker cannot know whether its first try was committed. If it was,
-- the event of that try says so, whoever has the job now, and nothing is rejected.
WITH carried_out AS MATERIALIZED (
    SELECT event.data
      FROM {job_events} AS event
     WHERE %(tried_before)s
       AND event.job_id = (%(id)s::{id_type})::text
       AND event."table" = {table_name}
       AND event.type = ANY (%(ended_by)s::text[])
       AND event.data -> 'details' ->> 'epoch' = (%(epoch)s::bigint)::text
       AND event.data -> 'details' ->> 'locked_by' = %(worker)s::text
     LIMIT 1
),
present AS MATERIALIZED (
    SELECT job.{status} AS status,
           job.{lease_epoch} AS lease_epoch,
           job.{locked_by} AS locked_by
      FROM {table} AS job
     WHERE job.{id} = %(id)s::{id_type}
),
happened (job_id, type, details) AS (
    SELECT (%(id)s::{id_type})::text,
           {job_stale_write_rejected}::text,
           jsonb_build_object(
               'verb', %(verb)s::text,
               'locked_by', %(worker)s::text,
               'stage', %(stage)s::text,
               'attempt', %(attempt)s::int,
               'epoch', %(epoch)s::bigint,
               'present_status', present.status,
               'present_epoch', present.lease_epoch,
               'present_locked_by', present.locked_by)
      FROM (SELECT) AS once
      LEFT JOIN present ON true
     WHERE NOT EXISTS (SELECT FROM carried_out)
       AND {in_session}
),
{event},
counted AS (
    INSERT INTO {jobreaper_totals} (name, "table")
    SELECT {stale_writes}, {table_name} FROM happened
)
SELECT present.status, present.lease_epoch, (SELECT data::text FROM carried_out), {in_session}
  FROM (SELECT) AS once
  LEFT JOIN present ON true
