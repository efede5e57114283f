-- How many jobs have a status, as the planner estimates it, without reading a row.
EXPLAIN (FORMAT JSON) SELECT FROM "office"."Errands" AS job WHERE job."State" = 'waiting'
