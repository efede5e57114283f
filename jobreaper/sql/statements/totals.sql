-- Totals: what has been counted so far.
WITH total AS (SELECT * FROM jobreaper_totals)
SELECT name, "table", label,
       sum(count)::bigint,
       LEAST(sum(microseconds), {largest})::bigint,
       extract(epoch FROM max(last_at))::float8
  FROM ({labelled_totals}) AS labelled
 WHERE label IS NOT NULL
 GROUP BY name, "table", label
