-- Reject: record that a verb of a worker that lost its lease wrote nothing. In another session than
-- the lease's, it wrote nothing for that reason.
--
-- After a lost connection, the worker cannot know whether its first try was committed. If it was,
-- the event of that try says so, whoever has the job now, and nothing is rejected.
WITH carried_out AS MATERIALIZED (
    SELECT event.data
      FROM job_events AS event
     WHERE %(tried_before)s
       AND event.job_id = (%(id)s::bigint)::text
       AND event."table" = 'office.Errands'
       AND event.type = ANY (%(ended_by)s::text[])
       AND event.data -> 'details' ->> 'epoch' = (%(epoch)s::bigint)::text
       AND event.data -> 'details' ->> 'locked_by' = %(worker)s::text
     LIMIT 1
),
present AS MATERIALIZED (
    SELECT job."State" AS status,
           job."fence" AS lease_epoch,
           job."worker" AS locked_by
      FROM "office"."Errands" AS job
     WHERE job."Number" = %(id)s::bigint
),
happened (job_id, type, details) AS (
    SELECT (%(id)s::bigint)::text,
           'job:stale_write_rejected'::text,
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
       AND NOT EXISTS (SELECT FROM jsonb_each_text(%(session)s::jsonb) AS own
                        WHERE own.value <> coalesce(current_setting(own.key, true), ''))
),
event (job_id, data) AS (
    SELECT happened.job_id,
           jsonb_build_object(
               'type', happened.type,
               'table', 'office.Errands'::text,
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
counted AS (
    INSERT INTO jobreaper_totals (name, "table")
    SELECT 'stale_writes', 'office.Errands' FROM happened
)
SELECT present.status, present.lease_epoch, (SELECT data::text FROM carried_out), NOT EXISTS (SELECT FROM jsonb_each_text(%(session)s::jsonb) AS own
                                                                                               WHERE own.value <> coalesce(current_setting(own.key, true), ''))
  FROM (SELECT) AS once
  LEFT JOIN present ON true
