-- Presence: a worker in another language ends and has given back what it held. False where it was not
-- here.
CREATE OR REPLACE FUNCTION "public"."jobreaper_worker_left"(worker text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = "pg_catalog", "pg_temp"
AS $body$
#variable_conflict use_column
BEGIN
    PERFORM pg_advisory_unlock_shared(held.key)
       FROM (-- The advisory locks of this database, by the key that they were taken with.
             SELECT pid, classid::bigint << 32 | objid::bigint AS key
               FROM pg_locks
              WHERE locktype = 'advisory'
                AND objsubid = 1
                AND granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS held
      WHERE held.pid = pg_backend_pid()
        AND held.key = hashtextextended(jobreaper_worker_left.worker, 620477);
    -- Presence: the worker is leaving, and has given back what it held.
    DELETE FROM "public"."jobreaper_workers" WHERE worker = jobreaper_worker_left.worker;
    RETURN FOUND;
END
$body$
