-- How many jobs a prune would delete.
SELECT count(*)
  FROM {table} AS job
 WHERE {has_ended}
   AND job.{finished_at} < statement_timestamp() - make_interval(secs => %(age_sec)s)
   AND {is_unreferenced}
