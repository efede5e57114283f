-- What a statement writes besides the row of its job, and whether it has written that row.

-- name: event
event (job_id, data) AS (
    SELECT happened.job_id,
           {event_data}
      FROM happened
),
{recorded}


-- name: event_data
jsonb_build_object(
    'type', happened.type,
    'table', {table_name}::text,
    'details', happened.details,
    -- In a query of its own, it is written once for all events.
    'at', (SELECT to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc})))


-- name: recorded
-- A trigger may keep an event out. Nothing reads here whether it did: the change of the job counts.
recorded AS (
    INSERT INTO {job_events} (job_id, data)
    SELECT job_id, data FROM event
)


-- name: all_written
-- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
-- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
-- an error, as of any row that cannot be written.
(SELECT CASE WHEN count(*) = (SELECT count(*) FROM {written}) THEN true
             ELSE ({suppressed} || (count(*) - (SELECT count(*) FROM {written}))::text
                   || ' row(s)')::boolean END
   FROM {taken})
