-- How many records a prune would delete.
SELECT count(*)
  FROM "jobreaper_workers"
 WHERE CASE WHEN is_direct THEN gone_at ELSE seen_at END < statement_timestamp() - make_interval(secs => %(age_sec)s)
