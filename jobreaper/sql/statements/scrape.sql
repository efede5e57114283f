-- The gauges of a table.

-- name: scrape
-- Scrape: the current state of a table. Nothing is counted beyond %(most)s rows, and the oldest due
-- job is looked for only among the next in line, because a scrape must not read a backlog of
-- millions. The ORDER BYs make PostgreSQL use the partial indexes.
WITH queued AS (
    SELECT FROM {table} AS job
     WHERE {is_queued} AND %(look_at_queue)s {in_line} LIMIT %(most)s
),
running AS (
    SELECT {lease_state} AS state FROM {running} WHERE {is_processing} {by_lease} LIMIT %(most)s
),
due (since) AS (SELECT * FROM ({due}) AS due WHERE %(look_at_queue)s),
by_queue AS (
    {by_queue}
)
SELECT (SELECT count(*) FROM queued),
       count(*) FILTER (WHERE state = {live}),
       count(*) FILTER (WHERE state = {late}),
       count(*) FILTER (WHERE state = {expired}),
       count(*) FILTER (WHERE state = {none}),
       GREATEST(extract(epoch FROM statement_timestamp() - (
           SELECT min(since) FROM due WHERE isfinite(since))), 0)::float8,
       (SELECT jsonb_object_agg(queue, number) FROM by_queue)
  FROM running


-- name: oldest_due_age
-- How many seconds the oldest due job has waited, by the rule of the scrape; no row if there is
-- none.
SELECT GREATEST(extract(epoch FROM statement_timestamp() - since), 0)::float8
  FROM (SELECT min(since) FROM ({due}) AS due (since) WHERE isfinite(since)) AS oldest (since)
 WHERE since IS NOT NULL


-- name: by_queue
-- The queues of the next in line, those with the most jobs first.
SELECT queue, count(*) AS number
  FROM (SELECT coalesce(job.{queue}::text, {default_queue}) AS queue
          FROM {table} AS job
         WHERE {is_queued} AND %(look_at_queue)s {in_line} LIMIT {most}) AS in_line
 GROUP BY queue
 ORDER BY number DESC, queue
 LIMIT {most_queues}
