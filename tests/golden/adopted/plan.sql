-- How many jobs have a status, as the planner estimates it, without reading a row.
EXPLAIN (FORMAT JSON) SELECT FROM "executor_jobs" AS job WHERE job."status" = 'queued'
