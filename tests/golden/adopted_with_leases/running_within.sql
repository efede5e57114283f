-- The running jobs of a stage or queue that take its slots, by the rule of a claim.
SELECT job."Number"::text
  FROM "office"."Errands" AS job
 WHERE job."kind"::text = %(name)s
   AND job."State" IN ('running', 'finishing')
   AND job."leased until" >= statement_timestamp()
 ORDER BY job."leased until"
 LIMIT %(most)s
