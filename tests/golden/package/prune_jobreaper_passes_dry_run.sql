-- How many records a prune would delete.
SELECT count(*)
  FROM "jobreaper_passes"
 WHERE "started_at" < statement_timestamp() - make_interval(secs => %(age_sec)s)
