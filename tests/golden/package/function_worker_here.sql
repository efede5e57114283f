-- Presence of a worker in another language: hold its lock on this session and say that it is here. To
-- be called again with each heartbeat. False: what it held is being taken back, so call again in a
-- moment. NULL: the session belongs to a pooler, so its leases alone decide.
CREATE OR REPLACE FUNCTION "public"."jobreaper_worker_here"(
    worker text, backend_pid int DEFAULT NULL, leases int DEFAULT 0, runs text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = "pg_catalog", "pg_temp"
AS $body$
#variable_conflict use_column
DECLARE
    is_held boolean;
BEGIN
    -- Presence: hold the worker's lock on this session, in shared mode, until the session ends. NULL where
    -- the session belongs to a pooler, which would hand it to somebody else, lock and all. A session lock
    -- counts how often it was taken, so one that is held is not taken again. The server notices within 20
    -- seconds that a host has lost its power.
    SELECT CASE WHEN pg_backend_pid() <> coalesce(jobreaper_worker_here.backend_pid, pg_backend_pid()) THEN NULL
                WHEN EXISTS (SELECT FROM (-- The advisory locks of this database, by the key that they were taken with.
                                          SELECT pid, classid::bigint << 32 | objid::bigint AS key
                                            FROM pg_locks
                                           WHERE locktype = 'advisory'
                                             AND objsubid = 1
                                             AND granted
                                             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS held
                              WHERE held.pid = pg_backend_pid() AND held.key = hashtextextended(jobreaper_worker_here.worker, 620477)) THEN true
                ELSE pg_try_advisory_lock_shared(hashtextextended(jobreaper_worker_here.worker, 620477))
                 AND set_config('tcp_keepalives_idle', '10', false) IS NOT NULL
                 AND set_config('tcp_keepalives_interval', '5', false) IS NOT NULL
                 AND set_config('tcp_keepalives_count', '2', false) IS NOT NULL
                 AND set_config('tcp_user_timeout', '20000', false) IS NOT NULL END
    INTO is_held;
    IF is_held IS NOT false THEN
        -- Presence: say who is here and what it holds. A worker that was taken for gone and lives is here again.
        INSERT INTO "public"."jobreaper_workers" AS worker
               (worker, kind, host, pid, version, runs, leases, is_direct)
        VALUES (jobreaper_worker_here.worker, 'foreign', coalesce(substring(jobreaper_worker_here.worker from '^(.+):[0-9]+:[^:]*$'), host(inet_client_addr()), ''), coalesce(substring(jobreaper_worker_here.worker from ':([0-9]{1,9}):[^:]*$')::int, 0), '', jobreaper_worker_here.runs, jobreaper_worker_here.leases, is_held IS NOT NULL)
        ON CONFLICT (worker) DO UPDATE
           SET seen_at = statement_timestamp(),
               kind = excluded.kind,
               runs = excluded.runs,
               leases = excluded.leases,
               is_direct = excluded.is_direct,
               silent_since = CASE WHEN excluded.is_direct THEN NULL ELSE worker.silent_since END,
               gone_at = NULL;
    END IF;
    RETURN is_held;
END
$body$
