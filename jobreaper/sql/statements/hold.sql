-- Whether a pass is held: the server's last start, the clocks, the last good pass.

-- name: server_back
-- How long the server has been available since its last outage; NULL if no pass had run before. A
-- crash of one session restarts the server within its process and resets all its statistics. A
-- standby that takes over keeps the time of the last transaction that it replayed. Both may have
-- started long before the server answered again, so the time runs from the first pass since then,
-- or from an hour later, because a pass that cannot be recorded would hold all others. A start in
-- the future was recorded before somebody set the clock back.
WITH crash (at) AS (
    -- Somebody may reset one of them, but hardly all.
    SELECT least((SELECT stats_reset FROM pg_stat_archiver),
                 (SELECT stats_reset FROM pg_stat_bgwriter),
                 (SELECT stats_reset FROM pg_stat_wal))
),
away (at) AS (
    SELECT at FROM crash WHERE at > pg_postmaster_start_time()
     UNION ALL
    SELECT pg_last_xact_replay_timestamp()
),
back (away_at, at) AS (
    SELECT pg_postmaster_start_time(), pg_postmaster_start_time()
     UNION ALL
    SELECT at,
           least((SELECT min(started_at) FROM {jobreaper_passes} WHERE started_at > away.at),
                 statement_timestamp(),
                 at + interval '1 hour')
      FROM away
)
SELECT abs(extract(epoch FROM statement_timestamp() - max(at)))::float8 AS up_sec
  FROM back
 WHERE EXISTS (SELECT FROM {jobreaper_passes} WHERE started_at < away_at)


-- name: clocks
-- The database's clock now, and the clocks at the last passes that this machine ran.
SELECT statement_timestamp(), earlier.started_at, earlier.machine_sec
  FROM (SELECT) AS now
  LEFT JOIN (
       {last_clocks}
       ) AS earlier ON true


-- name: last_pass_age
-- Seconds since the end of the last pass without an error.
SELECT extract(epoch FROM statement_timestamp() - started_at
                          - duration_ms * interval '1 millisecond')::float8
  FROM {jobreaper_passes}
 WHERE error IS NULL
 ORDER BY started_at DESC
 LIMIT 1


-- name: quiet
-- Quiet: whether a pass has nothing to do, by everything that it would otherwise ask for one by one. A
-- table may be said to have refused, hidden or due rows where it has none: the pass looks there.
SELECT now.*, earlier.started_at, earlier.machine_sec
  FROM (SELECT statement_timestamp(),
               ({server_back}),
               EXISTS (SELECT FROM {jobreaper_refused_rows} WHERE "table" = ANY (%(tables)s::text[])),
               coalesce((SELECT bool_or(row_security_active(to_regclass(name)))
                           FROM unnest(%(identifiers)s::text[]) AS name), false),
               ARRAY[{are_due}],
               (SELECT count(*) FROM {jobreaper_totals}) > %(most_unfolded)s
               OR EXISTS (SELECT
                            FROM {jobreaper_totals} AS total
                            LEFT JOIN {jobreaper_stages} AS named USING ("table", stage)
                           WHERE named.id IS NULL)) AS now
  LEFT JOIN (
       {last_clocks}
       ) AS earlier ON true
