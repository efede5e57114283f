-- Some jobs as they are, and the session that has locked the row of each. A running transaction that
-- has locked or changed a row is its xmax, and holds a lock on its own number, which every role may
-- see in pg_locks. A prepared transaction has no session.
SELECT job."Number"::text AS key,
       job."State"::text AS status,
       job."kind"::text AS stage,
       NULL::text AS type,
       NULL::text AS queue,
       job."worker"::text AS locked_by,
       job."started"::timestamptz AS claimed_at,
       job."leased until"::timestamptz AS lease_expires_at,
       job."seen"::timestamptz AS last_heartbeat_at,
       job."hard_end"::timestamptz AS deadline_at,
       coalesce(job."tries"::int, 0) AS attempt_count,
       coalesce(job."tries_allowed"::int, 3) AS max_attempts,
       job."not_before"::timestamptz AS next_earliest_run_at,
       job."sent"::timestamptz AS dispatched_at,
       job."ended"::timestamptz AS finished_at,
       job."error_code"::text AS fail_code,
       job."error_text"::text AS fail_reason,
       NULL::text AS progress,
       NULL::timestamptz AS progress_at,
       NULL::timestamptz AS stalls_at,
       statement_timestamp() AS seen_at,
       blocker.found::text AS locked,
       key.id AS id
  FROM "office"."Errands" AS job
 CROSS JOIN LATERAL (SELECT job."Number" AS id) AS key
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
 WHERE job."Number" = ANY (%(ids)s::bigint[])
