-- Which workers are here, and which are gone.

-- name: presence_lock
-- Presence: hold the worker's lock on this session, in shared mode, until the session ends. NULL where
-- the session belongs to a pooler, which would hand it to somebody else, lock and all. A session lock
-- counts how often it was taken, so one that is held is not taken again. The server notices within 20
-- seconds that a host has lost its power.
SELECT CASE WHEN pg_backend_pid() <> %(backend_pid)s THEN NULL
            WHEN EXISTS (SELECT FROM ({presence_locks}) AS held
                          WHERE held.pid = pg_backend_pid() AND held.key = {key_of_worker}) THEN true
            ELSE pg_try_advisory_lock_shared({key_of_worker})
             AND set_config('tcp_keepalives_idle', '10', false) IS NOT NULL
             AND set_config('tcp_keepalives_interval', '5', false) IS NOT NULL
             AND set_config('tcp_keepalives_count', '2', false) IS NOT NULL
             AND set_config('tcp_user_timeout', '20000', false) IS NOT NULL END


-- name: presence_note
-- Presence: say who is here and what it holds. A worker that was taken for gone and lives is here again.
INSERT INTO {jobreaper_workers} AS worker
       (worker, kind, host, pid, version, runs, leases, is_direct)
VALUES (%(worker)s, %(kind)s, %(host)s, %(pid)s, %(version)s, %(runs)s, %(leases)s, %(is_direct)s)
ON CONFLICT (worker) DO UPDATE
   SET seen_at = statement_timestamp(),
       kind = excluded.kind,
       runs = excluded.runs,
       leases = excluded.leases,
       is_direct = excluded.is_direct,
       silent_since = CASE WHEN excluded.is_direct THEN NULL ELSE worker.silent_since END,
       gone_at = NULL


-- name: presence_stopping
-- Presence: the worker was told to stop.
UPDATE {jobreaper_workers}
   SET stopping_at = coalesce(stopping_at, statement_timestamp())
 WHERE worker = %(worker)s


-- name: presence_left
-- Presence: the worker is leaving, and has given back what it held.
DELETE FROM {jobreaper_workers} WHERE worker = %(worker)s


-- name: presence_elect
-- Presence: become the one who looks. The lock is the session's. Whoever has it looks every second, so
-- one that has not for a while stands still, and the others look in its place. How many there are to
-- ask is counted by a lock that they share. NULL where the session belongs to a pooler.
WITH held AS MATERIALIZED ({presence_locks})
SELECT CASE WHEN pg_backend_pid() = %(backend_pid)s
            THEN pg_try_advisory_lock({watcher_key}) END,
       NOT EXISTS (
           SELECT FROM held JOIN pg_stat_activity AS session USING (pid)
            WHERE held.key = {watcher_key}
              AND coalesce(session.state_change, statement_timestamp())
                  > statement_timestamp() - %(still_sec)s * interval '1 second'),
       CASE WHEN pg_backend_pid() <> %(backend_pid)s
              OR EXISTS (SELECT FROM held WHERE pid = pg_backend_pid() AND key = {candidate_key})
            THEN NULL
            ELSE pg_try_advisory_lock_shared({candidate_key}) END,
       (SELECT count(*) FROM held WHERE key = {candidate_key})


-- name: presence_look
-- Presence: which workers' locks are free, since when, and how many are held. Written is only what
-- has changed, so a look at workers that are well writes nothing. A lock is tried, which costs less
-- than reading the server's whole list of locks. That list is read only while somebody is silent: for
-- such a worker, a lock that cannot be had may be that of another watcher. One's own session does not
-- keep a lock from oneself.
WITH held AS MATERIALIZED ({presence_locks} AND mode = 'ShareLock'),
looked AS MATERIALIZED (
    SELECT worker.worker,
           worker.host,
           worker.leases,
           worker.stopping_at IS NOT NULL AS was_stopping,
           worker.silent_since,
           CASE WHEN worker.worker = %(worker)s
                THEN true
                WHEN worker.silent_since IS NULL
                THEN NOT pg_try_advisory_xact_lock({key_of_row})
                ELSE {key_of_row} IN (SELECT held.key FROM held) END AS is_here
      FROM {jobreaper_workers} AS worker
     WHERE worker.is_direct
       AND worker.gone_at IS NULL
),
noted AS (
    UPDATE {jobreaper_workers} AS worker
       SET silent_since = CASE WHEN looked.is_here THEN NULL ELSE statement_timestamp() END
      FROM looked
     WHERE worker.worker = looked.worker
       AND looked.is_here = (looked.silent_since IS NOT NULL)
)
SELECT worker,
       host,
       leases,
       was_stopping,
       extract(epoch FROM statement_timestamp()
                          - coalesce(silent_since, statement_timestamp()))::float8 AS silent_sec,
       (SELECT count(*) FROM looked WHERE is_here) AS here
  FROM looked
 WHERE NOT is_here
 ORDER BY silent_since, worker


-- name: presence_gone
-- Presence: take the lock of a worker that is thought to be gone, until this transaction ends, so that
-- it cannot come back in between. False where it is here after all.
SELECT pg_try_advisory_xact_lock({key_of_worker})


-- name: presence_taken
-- Presence: the leases of a worker that is gone were taken back.
UPDATE {jobreaper_workers}
   SET gone_at = statement_timestamp(),
       leases = 0,
       taken = taken + %(taken)s
 WHERE worker = %(worker)s


-- name: presence_count
-- Presence: how many workers of each kind are here, silent and gone.
SELECT kind, state, count(*)
  FROM (SELECT kind, {worker_state} AS state FROM {jobreaper_workers}) AS standing
 GROUP BY kind, state


-- name: presence_route
-- Presence: whether this session is the client's own, and of which database of which server it is.
SELECT pg_backend_pid() = %(backend_pid)s, oid::bigint, pg_postmaster_start_time()
  FROM pg_database
 WHERE datname = current_database()
