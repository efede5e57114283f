-- How many seconds the oldest due job has waited, by the rule of the scrape; no row if there is
-- none.
SELECT GREATEST(extract(epoch FROM statement_timestamp() - since), 0)::float8
  FROM (SELECT min(since) FROM ((SELECT GREATEST(NULL::timestamptz, job."not_before", job."seen") FROM "office"."Errands" AS job WHERE job."State" = 'waiting' AND job."not_before" <= statement_timestamp() ORDER BY job."not_before", job."Number" LIMIT 10000)
                                 UNION ALL
                                (SELECT GREATEST(NULL::timestamptz, job."not_before", job."seen") FROM "office"."Errands" AS job WHERE job."State" = 'waiting' AND job."not_before" IS NULL ORDER BY job."not_before", job."Number" LIMIT 10000)) AS due (since) WHERE isfinite(since)) AS oldest (since)
 WHERE since IS NOT NULL
