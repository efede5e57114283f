-- How many jobs have a status, counted up to %(most)s.
SELECT count(*) FROM (SELECT FROM "office"."Errands" AS job WHERE job."State" = 'failed' LIMIT %(most)s) AS job
