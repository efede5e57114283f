-- Seconds since the end of the last pass without an error.
SELECT extract(epoch FROM statement_timestamp() - started_at
                          - duration_ms * interval '1 millisecond')::float8
  FROM jobreaper_passes
 WHERE error IS NULL
 ORDER BY started_at DESC
 LIMIT 1
