-- Enqueue one job and return it, or the job that stands in its place: the queued or processing one
-- with its key. No row back means that the job in its place ended meanwhile: try again.
WITH {enqueued}
SELECT {columns}, job.is_new
  FROM made AS job
  LEFT JOIN notified ON true
 UNION ALL
SELECT {columns}, NULL
  FROM {table} AS job
 WHERE NOT EXISTS (SELECT FROM made)
   AND job.dedupe_key IS NOT NULL
   AND job.status IN ({queued}, {processing})
   AND {digest_of_job} = (SELECT {digest} FROM given)
