-- End many attempts of one worker: finish, fail or release them. Return those that were not ended,
-- and whether their lease still stands, which means that the row was locked. If requested, also
-- return the events of the others.
WITH
policies AS MATERIALIZED (
    -- One row per stage; the default policy has the stage ''.
    SELECT policy.stage,
           policy.lease_sec,
           policy.sla_factor,
           policy.max_runtime_sec * interval '1 second' AS max_runtime,
           policy.stall_after_sec * interval '1 second' AS stall_after,
           policy.backoff_ms,
           policy.on_expiry,
           policy.max_reaps,
           coalesce(policy.ttl_sec, NULL::float8) * interval '1 second' AS ttl
      FROM jsonb_to_recordset(%(policies)s::jsonb) AS policy (stage text, lease_sec float8, sla_factor float8, max_runtime_sec float8,
           stall_after_sec float8, backoff_ms bigint[], on_expiry text, max_reaps int, ttl_sec float8)
),
-- The attempts before this statement ends them. Their worker has measured how long each waited for
-- its turn after the claim, and how long it ran. A row that another transaction has locked is left
-- for later, so that the others do not wait for it.
ending AS MATERIALIZED (
    SELECT *
      FROM unnest(%(ids)s::bigint[], %(epochs)s::bigint[], %(waited_ms)s::float8[],
                  %(ran_ms)s::float8[]) AS ending (id, epoch, waited_ms, ran_ms)
),
attempt AS MATERIALIZED (
    SELECT job."Number" AS id,
           job."worker" AS locked_by,
           job."kind"::text AS stage,
           coalesce(job."tries"::int, 0) AS attempt_count,
           coalesce(job."tries_allowed"::int, 3) AS max_attempts,
           job."fence" AS lease_epoch,
           job."started" AS claimed_at,
           CASE WHEN isfinite(job."not_before") AND isfinite(job."started") THEN
               GREATEST(extract(epoch FROM job."started" - job."not_before") * 1000, 0) END
               AS due_to_claim_ms,
           round(ending.ran_ms)::bigint AS duration_ms,
           ending.waited_ms AS claim_to_start_ms
      FROM "office"."Errands" AS job
      JOIN ending ON ending.id = job."Number" AND ending.epoch = job."fence"
     WHERE job."Number" = ANY (%(ids)s::bigint[])
       AND job."worker"::text = %(worker)s
       AND job."State" IN ('running', 'finishing')
       AND NOT EXISTS (SELECT FROM jsonb_each_text(%(session)s::jsonb) AS own
                        WHERE own.value <> coalesce(current_setting(own.key, true), ''))
       FOR NO KEY UPDATE OF job SKIP LOCKED
),
-- Back to the queue with backoff while attempts are left and the error may be retried, otherwise
-- failed. `= ANY (ARRAY(...))` makes the planner find the jobs by their keys.
verdict AS MATERIALIZED (
    SELECT job.*,
           error.fail_code,
           error.fail_reason,
           error.exception,
           error.traceback,
           %(retry)s AND job.attempt_count < job.max_attempts AS requeues,
           statement_timestamp() + coalesce(make_interval(secs => %(delay_sec)s), policy.backoff_ms[LEAST(GREATEST(job.attempt_count, 1), cardinality(policy.backoff_ms))]
                                                                                      * interval '1 millisecond')
               AS run_again_at
      FROM attempt AS job
      JOIN unnest(%(ids)s::bigint[], %(fail_codes)s::text[], %(fail_reasons)s::text[],
                  %(exceptions)s::text[], %(tracebacks)s::text[])
               AS error (id, fail_code, fail_reason, exception, traceback) ON error.id = job.id
      JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
),
failed AS (
    UPDATE "office"."Errands" AS job
       SET "State" = -- The last branch is never used. It gives the words the type of the column, which may be an enum.
                     CASE WHEN verdict.requeues THEN 'waiting'
                          WHEN NOT verdict.requeues THEN 'failed'
                          ELSE job."State" END,
           "ended" = CASE WHEN verdict.requeues THEN NULL ELSE statement_timestamp() END,
           "not_before" = CASE WHEN verdict.requeues THEN verdict.run_again_at
                                         ELSE job."not_before" END,
           "error_code" = left(verdict.fail_code, 200),
           "error_text" = left(coalesce(verdict.fail_reason, ''),
                                2147483647),
           "worker" = '',
           "started" = NULL,
           "leased until" = NULL,
           "hard_end" = NULL,
           "sent" = NULL
      FROM verdict
     WHERE job."Number" = verdict.id
       AND job."Number" = ANY (ARRAY(SELECT id FROM verdict))
    RETURNING verdict.*, job."error_code" AS written_code, job."error_text" AS written_reason
),
happened (job_id, type, details) AS (
    SELECT attempt.id::text,
           CASE WHEN attempt.requeues THEN 'job:retried' ELSE 'job:failed' END,
           jsonb_build_object(
               'locked_by', attempt.locked_by,
               'stage', attempt.stage,
               'attempt', attempt.attempt_count,
               'epoch', attempt.lease_epoch,
               'claimed_at', to_char(attempt.claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'queue_wait_ms', round(attempt.due_to_claim_ms + attempt.claim_to_start_ms)::bigint,
               'duration_ms', attempt.duration_ms,
               'fail_code', attempt.written_code,
               'fail_reason', attempt.written_reason,
               'exception', attempt.exception,
               'traceback', attempt.traceback,
               'next_earliest_run_at', CASE WHEN attempt.requeues THEN
                   to_char(attempt.run_again_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END)
      FROM failed AS attempt
     WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
           -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
           -- an error, as of any row that cannot be written.
           (SELECT CASE WHEN count(*) = (SELECT count(*) FROM failed) THEN true
                        ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM failed))::text
                              || ' row(s)')::boolean END
              FROM (SELECT DISTINCT id FROM verdict) AS job)
),
event (job_id, data) AS (
    SELECT happened.job_id,
           jsonb_build_object(
               'type', happened.type,
               'table', 'office.Errands'::text,
               'details', happened.details,
               -- In a query of its own, it is written once for all events.
               'at', (SELECT to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
      FROM happened
),
-- A trigger may keep an event out. Nothing reads here whether it did: the change of the job counts.
recorded AS (
    INSERT INTO job_events (job_id, data)
    SELECT job_id, data FROM event
),
unended AS (
    SELECT ending.id,
           (SELECT job."State" IN ('running', 'finishing')
              FROM "office"."Errands" AS job
             WHERE job."Number" = ending.id
               AND job."fence" = ending.epoch
               AND job."worker"::text = %(worker)s) AS held
      FROM ending
     WHERE ending.id NOT IN (SELECT id FROM attempt)
)
SELECT id::text, coalesce(held, false), NULL FROM unended
 UNION ALL
SELECT job_id, NULL, data::text FROM event WHERE %(details)s
