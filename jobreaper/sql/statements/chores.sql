-- What workers do beside running jobs, one of them at a time.

-- name: take_chore
-- Record that a worker does a chore, unless one did so less than its interval ago. Who comes too
-- early locks and writes nothing.
INSERT INTO jobreaper_chores AS chore
       (name, started_at, worker)
SELECT %(name)s, statement_timestamp(), %(worker)s
 WHERE NOT EXISTS (SELECT FROM jobreaper_chores AS chore
                    WHERE chore.name = %(name)s
                      AND chore.started_at
                          > statement_timestamp() - %(after_sec)s * interval '1 second')
ON CONFLICT (name) DO UPDATE
   SET started_at = excluded.started_at,
       worker = excluded.worker
 WHERE chore.started_at <= statement_timestamp() - %(after_sec)s * interval '1 second'
RETURNING chore.name
