-- What a pass asks before anything else.

-- name: last_clocks
-- The clocks at the last passes that this machine ran. Those of the last moments are left out: the
-- first pass after a jump is held, and so are those that follow it at once.
SELECT started_at, machine_sec
  FROM {jobreaper_passes}
 WHERE machine = %(machine)s
   AND started_at <= statement_timestamp() - %(grace_sec)s * interval '1 second'
 ORDER BY started_at DESC
 LIMIT 10


-- name: any_expired
-- In the form of the pass itself, so that the index serves it. Some of them may have to wait. A column
-- that is missing is an error, as it would be to a pass that finds something.
coalesce((SELECT true OR ROW({all_columns}) IS NULL
            FROM {table} AS job
           WHERE {is_processing}
             AND job.{lease_expires_at} < statement_timestamp()
           ORDER BY job.{lease_expires_at}
           LIMIT (SELECT 1)), false)
