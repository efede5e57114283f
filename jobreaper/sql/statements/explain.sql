-- What a person asks about single jobs: how they stand, and what is in their way.

-- name: job_facts
-- Some jobs as they are, and the session that has locked the row of each. A running transaction that
-- has locked or changed a row is its xmax, and holds a lock on its own number, which every role may
-- see in pg_locks. A prepared transaction has no session.
SELECT {key_as_text} AS key,
       job.{status}::text AS status,
       {read_stage} AS stage,
       {read_type} AS type,
       {read_queue} AS queue,
       {read_locked_by} AS locked_by,
       {read_claimed_at} AS claimed_at,
       {read_lease_expires_at} AS lease_expires_at,
       {read_last_heartbeat_at} AS last_heartbeat_at,
       {read_deadline_at} AS deadline_at,
       {read_attempt_count} AS attempt_count,
       {max_attempts_of_job} AS max_attempts,
       {read_next_earliest_run_at} AS next_earliest_run_at,
       {read_dispatched_at} AS dispatched_at,
       {read_finished_at} AS finished_at,
       {read_fail_code} AS fail_code,
       {read_fail_reason} AS fail_reason,
       {read_progress} AS progress,
       {read_progress_at} AS progress_at,
       {read_stalls_at} AS stalls_at,
       statement_timestamp() AS seen_at,
       blocker.found::text AS locked,
       key.id AS id{key_as_read}
  FROM {table} AS job
 CROSS JOIN LATERAL (SELECT {key} AS id) AS key
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
 WHERE {key} = ANY (%(ids)s::{id_type}[])


-- name: running_within
-- The running jobs of a stage or queue that take its slots, by the rule of a claim.
SELECT job.{id}::text
  FROM {table} AS job
 WHERE {limited} = %(name)s
   AND {is_processing}
   AND job.{lease_expires_at} >= statement_timestamp()
 ORDER BY job.{lease_expires_at}
 LIMIT %(most)s


-- name: surroundings
-- What concerns every job of a database: its time, and the last pass.
SELECT statement_timestamp(), last.started_at, last.held_reason, last.error
  FROM (SELECT) AS here
  LEFT JOIN LATERAL (
       SELECT started_at, held_reason, error
         FROM {jobreaper_passes}
        ORDER BY started_at DESC
        LIMIT 1) AS last ON true
