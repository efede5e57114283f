-- How long the server has been up, and whether a pass had run before it started.
SELECT extract(epoch FROM statement_timestamp() - pg_postmaster_start_time())::float8 AS up_sec,
       EXISTS (SELECT FROM jobreaper_passes WHERE started_at < pg_postmaster_start_time())
           AS had_passes
