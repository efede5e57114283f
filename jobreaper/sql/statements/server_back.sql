-- How long the server has been there for its workers since it was last away, and whether a pass had
-- run before. A crash of one session restarts the server within its process and clears all its
-- statistics; a standby that takes over keeps the time of the last transaction that it replayed. Both
-- may have begun long before the server answered again, so the time runs from the first pass since,
-- and from an hour later at the latest, since a pass that cannot be recorded would hold all others.
SELECT extract(epoch FROM statement_timestamp() - back_at)::float8 AS up_sec,
       EXISTS (SELECT FROM jobreaper_passes WHERE started_at < away_at) AS had_passes
  FROM (SELECT pg_postmaster_start_time() AS away_at, pg_postmaster_start_time() AS back_at
         UNION ALL
        SELECT away_at,
               least((SELECT min(started_at) FROM jobreaper_passes WHERE started_at > away_at),
                     statement_timestamp(),
                     away_at + interval '1 hour')
          FROM (SELECT greatest(
                           -- Somebody may reset one of them, but hardly all.
                           least((SELECT stats_reset FROM pg_stat_archiver),
                                 (SELECT stats_reset FROM pg_stat_bgwriter),
                                 (SELECT stats_reset FROM pg_stat_wal)),
                           pg_last_xact_replay_timestamp()) AS away_at) AS crash_or_failover
         WHERE away_at > pg_postmaster_start_time()) AS times_away
 ORDER BY back_at DESC
 LIMIT 1
