-- Some jobs as they are, and the session that has locked the row of each. A running transaction that
-- has locked or changed a row is its xmax, and holds a lock on its own number, which every role may
-- see in pg_locks. A prepared transaction has no session.
SELECT job."id"::text AS key,
       job."status"::text AS status,
       job."stage"::text AS stage,
       job."type"::text AS type,
       job."queue"::text AS queue,
       job."locked_by"::text AS locked_by,
       job."claimed_at"::timestamptz AS claimed_at,
       job."lease_expires_at"::timestamptz AS lease_expires_at,
       job."last_heartbeat_at"::timestamptz AS last_heartbeat_at,
       job."deadline_at"::timestamptz AS deadline_at,
       coalesce(job."attempt_count"::int, 0) AS attempt_count,
       coalesce(job."max_attempts"::int, 3) AS max_attempts,
       job."next_earliest_run_at"::timestamptz AS next_earliest_run_at,
       job."dispatched_at"::timestamptz AS dispatched_at,
       job."finished_at"::timestamptz AS finished_at,
       job."fail_code"::text AS fail_code,
       job."fail_reason"::text AS fail_reason,
       job."progress"::text AS progress,
       job."progress_at"::timestamptz AS progress_at,
       job."stalls_at"::timestamptz AS stalls_at,
       statement_timestamp() AS seen_at,
       blocker.found::text AS locked,
       key.id AS id
  FROM "jobreaper_jobs" AS job
 CROSS JOIN LATERAL (SELECT job."id" AS id) AS key
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
 WHERE job."id" = ANY (%(ids)s::uuid[])
