-- The running jobs of a stage or queue that take its slots, by the rule of a claim.
SELECT job."id"::text
  FROM "jobs" AS job
 WHERE job."stage" = %(name)s
   AND job."status" = 'processing'
   AND job."lease_expires_at" >= statement_timestamp()
 ORDER BY job."lease_expires_at"
 LIMIT %(most)s
