-- Seconds that the oldest due job has waited, by the rule of the scrape; no row where there is none.
SELECT GREATEST(extract(epoch FROM statement_timestamp() - since), 0)::float8
  FROM (SELECT min(since) FROM ({due}) AS due (since) WHERE isfinite(since)) AS oldest (since)
 WHERE since IS NOT NULL
