-- How many jobs a prune would delete.
SELECT count(*)
  FROM "office"."Errands" AS job
 WHERE job."State" = 'completed'
   AND job."ended" < statement_timestamp() - make_interval(secs => %(age_sec)s)
   AND true
