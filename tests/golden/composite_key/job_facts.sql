-- Some jobs as they are, and the session that has locked the row of each. A running transaction that
-- has locked or changed a row is its xmax, and holds a lock on its own number, which every role may
-- see in pg_locks. A prepared transaction has no session.
SELECT jsonb_build_array(job."at", job."n")::text AS key,
       job."status"::text AS status,
       NULL::text AS stage,
       NULL::text AS type,
       NULL::text AS queue,
       NULL::text AS locked_by,
       job."claimed_at"::timestamptz AS claimed_at,
       NULL::timestamptz AS lease_expires_at,
       NULL::timestamptz AS last_heartbeat_at,
       NULL::timestamptz AS deadline_at,
       NULL::int AS attempt_count,
       coalesce(NULL::int, 3) AS max_attempts,
       NULL::timestamptz AS next_earliest_run_at,
       NULL::timestamptz AS dispatched_at,
       NULL::timestamptz AS finished_at,
       NULL::text AS fail_code,
       NULL::text AS fail_reason,
       NULL::text AS progress,
       NULL::timestamptz AS progress_at,
       NULL::timestamptz AS stalls_at,
       statement_timestamp() AS seen_at,
       blocker.found::text AS locked,
       key.id AS id, (key.id::jsonb ->> 0)::timestamp with time zone AS "read_0", (key.id::jsonb ->> 1)::integer AS "read_1"
  FROM "chores" AS job
 CROSS JOIN LATERAL (SELECT jsonb_build_array(job."at", job."n")::text AS id) AS key
  LEFT JOIN LATERAL (
       SELECT jsonb_build_object(
                  'pid', lock.pid,
                  'user', session.usename,
                  'application', session.application_name,
                  'state', session.state,
                  'query', session.query,
                  'since', session.xact_start,
                  'prepared', prepared.gid) AS found
         FROM pg_locks AS lock
         LEFT JOIN pg_stat_activity AS session ON session.pid = lock.pid
         LEFT JOIN pg_prepared_xacts AS prepared ON prepared.transaction = lock.transactionid
        WHERE lock.locktype = 'transactionid'
          AND lock.granted
          AND lock.mode = 'ExclusiveLock'
          AND lock.pid IS DISTINCT FROM pg_backend_pid()
          AND lock.transactionid = job.xmax
        LIMIT 1) AS blocker ON true
 WHERE jsonb_build_array(job."at", job."n")::text = ANY (%(ids)s::text[])
