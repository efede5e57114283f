-- How many events or passes a prune would delete.
SELECT count(*)
  FROM {records}
 WHERE {moment} < statement_timestamp() - make_interval(secs => %(age_sec)s)
