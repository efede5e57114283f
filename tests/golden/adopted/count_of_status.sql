-- How many jobs have a status, counted up to %(most)s.
SELECT count(*) FROM (SELECT FROM "executor_jobs" AS job WHERE job."status" IN ('dead', 'failed') LIMIT %(most)s) AS job
