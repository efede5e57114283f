-- How many jobs a prune would delete.
SELECT count(*)
  FROM "jobs" AS job
 WHERE job."status" = 'success'
   AND job."finished_at" < statement_timestamp() - make_interval(secs => %(age_sec)s)
   AND true
