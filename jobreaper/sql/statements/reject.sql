-- Reject: a verb of a worker that lost its lease wrote nothing; put that on record.
--
-- After a lost connection the worker cannot know whether its first try was committed. Only the
-- lease's own finish, fail and release leave the epoch as it is, so a row that is no longer
-- processing under the same epoch is that first try's work and no rejection.
WITH present AS MATERIALIZED (
    SELECT job.{status} AS status,
           job.{lease_epoch} AS lease_epoch,
           job.{locked_by} AS locked_by,
           {is_processing} AS is_processing
      FROM {table} AS job
     WHERE job.{id} = %(id)s::{id_type}
),
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT (%(id)s::{id_type})::text,
           jsonb_build_object(
               'type', {job_stale_write_rejected}::text,
               'table', {table_name}::text,
               'details', jsonb_build_object(
                   'verb', %(verb)s::text,
                   'locked_by', %(worker)s::text,
                   'stage', %(stage)s::text,
                   'attempt', %(attempt)s::int,
                   'epoch', %(epoch)s::bigint,
                   'present_status', present.status,
                   'present_epoch', present.lease_epoch,
                   'present_locked_by', present.locked_by),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM (SELECT) AS once
      LEFT JOIN present ON true
     WHERE NOT (%(tried_before)s AND NOT present.is_processing
                AND present.lease_epoch = %(epoch)s) IS TRUE
    RETURNING 1
),
counted AS (
    INSERT INTO jobreaper_totals (name, "table")
    SELECT {stale_writes}, {table_name} FROM event
)
SELECT present.status, present.lease_epoch, EXISTS (SELECT FROM event) AS rejected
  FROM (SELECT) AS once
  LEFT JOIN present ON true
