-- How long the server has been there for its workers since it was last away; NULL where no pass had
-- run before. A crash of one session restarts the server within its process and resets all its
-- statistics; a standby that takes over keeps the time of the last transaction that it replayed. Both
-- may have begun long before the server answered again, so the time runs from the first pass since,
-- and from an hour later at the latest, since a pass that cannot be recorded would hold all others.
-- A start ahead of the clock was noted before somebody set the clock back.
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
           least((SELECT min(started_at) FROM jobreaper_passes WHERE started_at > away.at),
                 statement_timestamp(),
                 at + interval '1 hour')
      FROM away
)
SELECT abs(extract(epoch FROM statement_timestamp() - max(at)))::float8 AS up_sec
  FROM back
 WHERE EXISTS (SELECT FROM jobreaper_passes WHERE started_at < away_at)
