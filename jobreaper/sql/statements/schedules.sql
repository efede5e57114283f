-- Schedules: recorded, looked at, and locked by who makes their jobs.

-- name: schedules_now
-- The database's clock, by which schedules go.
SELECT statement_timestamp()


-- name: declare_schedule
-- Record what a process knows. A new schedule, or one that differs now, begins with its next time.
INSERT INTO jobreaper_schedules AS known
       (name, definition, next_at)
VALUES (%(name)s, %(definition)s, %(next_at)s)
ON CONFLICT (name) DO UPDATE
   SET definition = excluded.definition,
       next_at = excluded.next_at,
       declared_at = statement_timestamp()
 WHERE %(replaces)s
   AND known.definition <> excluded.definition
RETURNING name


-- name: schedules_due_in
-- In how many seconds the first of some schedules is due, and how many of them are recorded.
-- 'infinity' has no distance from now, but seconds since the epoch.
SELECT (extract(epoch FROM min(known.next_at) FILTER (WHERE given.definition = known.definition))
        - extract(epoch FROM statement_timestamp()))::float8,
       count(*)
  FROM jobreaper_schedules AS known
  JOIN jsonb_to_recordset(%(given)s::jsonb) AS given (name text, definition jsonb)
    ON given.name = known.name


-- name: due_schedules
-- Lock the schedules that are due, unless another process makes their jobs at this moment, or they
-- are declared otherwise by now.
SELECT known.name, known.next_at, known.paused_at IS NOT NULL, statement_timestamp()
  FROM jobreaper_schedules AS known
  JOIN jsonb_to_recordset(%(given)s::jsonb) AS given (name text, definition jsonb)
    ON given.name = known.name
   AND given.definition = known.definition
 WHERE known.next_at <= statement_timestamp()
 ORDER BY known.next_at
   FOR NO KEY UPDATE OF known SKIP LOCKED


-- name: schedules_standing
-- How schedules stand: when they made a job for a time of theirs and will again, in seconds since the
-- epoch; for how many seconds the next time has been over; whether they are paused, and whether their
-- last job could not be made.
SELECT name,
       extract(epoch FROM ticked_at)::float8,
       extract(epoch FROM next_at)::float8,
       CASE WHEN paused_at IS NULL AND next_at <= statement_timestamp()
            THEN extract(epoch FROM statement_timestamp()) - extract(epoch FROM next_at)
            ELSE 0 END::float8,
       paused_at IS NOT NULL,
       error IS NOT NULL
  FROM jobreaper_schedules
 WHERE name = ANY (%(names)s::text[])
 ORDER BY name
