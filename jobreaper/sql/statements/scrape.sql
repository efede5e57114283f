-- Scrape: how a table stands now. Nothing is counted beyond %(most)s rows, and how long the oldest
-- due job has waited is asked of the jobs next in line: a scrape must not read a backlog of
-- millions. The ORDER BYs are there to be served by the partial indexes.
WITH queued AS (
    SELECT FROM {table} AS job
     WHERE {is_queued} AND %(look_at_queue)s {in_line} LIMIT %(most)s
),
running AS (
    SELECT {lease_state} AS state FROM {running} WHERE {is_processing} {by_lease} LIMIT %(most)s
),
due (since) AS (SELECT * FROM ({due}) AS due WHERE %(look_at_queue)s)
SELECT (SELECT count(*) FROM queued),
       count(*) FILTER (WHERE state = {live}),
       count(*) FILTER (WHERE state = {late}),
       count(*) FILTER (WHERE state = {expired}),
       count(*) FILTER (WHERE state = {none}),
       GREATEST(extract(epoch FROM statement_timestamp() - (
           SELECT min(since) FROM due WHERE isfinite(since))), 0)::float8
  FROM running
