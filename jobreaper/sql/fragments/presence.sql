-- The advisory locks of workers. The seed sets them apart from other packages' advisory locks.

-- name: presence_key
hashtextextended({worker}, 620477)


-- name: presence_locks
-- The advisory locks of this database, by the key that they were taken with.
SELECT pid, classid::bigint << 32 | objid::bigint AS key
  FROM pg_locks
 WHERE locktype = 'advisory'
   AND objsubid = 1
   AND granted
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())


-- name: worker_ended
CASE WHEN is_direct THEN gone_at ELSE seen_at END


-- name: worker_state
-- How a worker stands. It is here if it was seen lately and a session of its own holds its lock.
-- Through a pooler, no session does, so only its word counts: it is gone when it has been silent for
-- as long as a lease. Nothing is taken back because of it.
CASE WHEN jobreaper_workers.gone_at IS NOT NULL
     THEN {gone}
     WHEN jobreaper_workers.seen_at >= statement_timestamp() - {late_sec} * interval '1 second'
      AND (NOT jobreaper_workers.is_direct
           OR {key_of_worker} IN (SELECT held.key FROM ({presence_locks}) AS held))
     THEN {here}
     WHEN NOT jobreaper_workers.is_direct
      AND jobreaper_workers.seen_at < statement_timestamp() - {lease_sec} * interval '1 second'
     THEN {gone}
     ELSE {silent} END
