-- What keeps the reaper, or PostgreSQL itself, from doing well.

-- name: server
-- The server: its time, its version, whether autovacuum is on, and whether this session is direct.
SELECT clock_timestamp(),
       current_setting('server_version_num')::int,
       current_setting('server_version'),
       current_setting('autovacuum') = 'on' AND current_setting('track_counts') = 'on',
       pg_backend_pid() = %(backend_pid)s


-- name: passes_by_trigger
-- Who asked for the passes of the last day, and when last.
SELECT trigger, max(started_at)
  FROM (SELECT trigger, started_at
          FROM {jobreaper_passes}
         WHERE started_at > statement_timestamp() - interval '1 day'
         ORDER BY started_at DESC
         LIMIT 5000) AS pass
 GROUP BY trigger


-- name: vacuum
-- The tables that autovacuum has not kept up with: many dead rows, or switched off.
SELECT stat.relname,
       stat.n_live_tup,
       stat.n_dead_tup,
       extract(epoch FROM statement_timestamp()
                          - GREATEST(stat.last_autovacuum, stat.last_vacuum))::float8,
       coalesce(class.reloptions::text LIKE '%%autovacuum_enabled=false%%', false)
  FROM pg_stat_user_tables AS stat
  JOIN pg_class AS class ON class.oid = stat.relid
 WHERE stat.relid = ANY (ARRAY(SELECT to_regclass(name) FROM unnest(%(tables)s::text[]) AS name))


-- name: index_use
-- How an index is used: how often it was scanned, the rows of its table, and whether it is valid; no
-- row if it does not exist.
SELECT stat.idx_scan, class.reltuples::bigint, index.indisvalid
  FROM pg_index AS index
  JOIN pg_class AS class ON class.oid = index.indrelid
  LEFT JOIN pg_stat_user_indexes AS stat ON stat.indexrelid = index.indexrelid
 WHERE index.indexrelid = to_regclass(%(index)s)


-- name: holds_vacuum_back
-- What keeps vacuum from removing dead rows: transactions, prepared ones, and replication slots that
-- are older than a limit.
SELECT 'backend', pid::text, coalesce(application_name, '') || ' ' || coalesce(usename, ''),
       coalesce(state, ''), coalesce(query, ''),
       extract(epoch FROM statement_timestamp() - xact_start)::float8
  FROM pg_stat_activity
 WHERE backend_type = 'client backend'
   AND pid <> pg_backend_pid()
   AND xact_start < statement_timestamp() - %(old_sec)s * interval '1 second'
   AND datname = current_database()
 UNION ALL
SELECT 'prepared', gid, owner, '', '',
       extract(epoch FROM statement_timestamp() - prepared)::float8
  FROM pg_prepared_xacts
 WHERE prepared < statement_timestamp() - %(old_sec)s * interval '1 second'
   AND database = current_database()
 UNION ALL
SELECT 'slot', slot_name, coalesce(plugin, slot_type), '', '', NULL
  FROM pg_replication_slots
 WHERE NOT active
   AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)
