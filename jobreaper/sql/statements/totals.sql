-- Totals: what has been counted so far.
WITH total AS (SELECT * FROM jobreaper_totals)
SELECT name, "table", stage,
       sum(count)::bigint,
       LEAST(sum(microseconds), {largest})::bigint,
       extract(epoch FROM max(last_at))::float8
  FROM ({labelled_totals}) AS labelled
 GROUP BY name, "table", stage
