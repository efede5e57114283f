-- How many records a prune would delete.
SELECT count(*)
  FROM "job_events"
 WHERE "at" < statement_timestamp() - make_interval(secs => %(age_sec)s)
