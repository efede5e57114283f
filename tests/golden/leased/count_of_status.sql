-- How many jobs have a status, counted up to %(most)s.
SELECT count(*) FROM (SELECT FROM "jobs" AS job WHERE job."status" = 'failed' LIMIT %(most)s) AS job
