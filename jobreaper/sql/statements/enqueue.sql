-- New jobs.

-- name: enqueue
-- Enqueue one job and return it, or the queued or processing job that has its key. If no row is
-- returned, that job ended meanwhile: try again.
WITH
{enqueued}
SELECT {columns}, job.is_new
  FROM made AS job
  LEFT JOIN notified ON true
{or_existing}


-- name: enqueue_many
-- Enqueue many jobs at once, and return which were created and which replaced a queued one; without
-- keys, how many were created.
WITH
{enqueued}
SELECT {written}
  FROM made
  LEFT JOIN notified ON true
