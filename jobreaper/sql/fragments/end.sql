-- The end of an attempt: what finish, fail and release write.

-- name: ended
ended AS (
    UPDATE {table} AS job
       SET {changes}
           {last_report}
           {unlock}
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM attempt))
    RETURNING job.{id}
),
-- Not from the rows updated: joined with the attempts, 500 jobs would cost 500 x 500 comparisons,
-- since the planner takes both for one row.
happened (job_id, type, details) AS (
    SELECT attempt.id::text,
           {event_type}::text,
           jsonb_build_object(
               {attempt_details})
      FROM attempt
     WHERE {all_written}
)


-- name: finished
{status} = {success},
{with_result}
{finished_at} = statement_timestamp(),
{fail_code} = {no_fail_code},
{fail_reason} = {no_fail_reason},


-- name: failing
-- Back to the queue with backoff while attempts are left and the error may be retried, otherwise
-- failed. `= ANY (ARRAY(...))` makes the planner find the jobs by their keys.
verdict AS MATERIALIZED (
    SELECT job.*,
           error.fail_code,
           error.fail_reason,
           error.exception,
           error.traceback,
           %(retry)s AND job.attempt_count < job.max_attempts AS requeues,
           statement_timestamp() + coalesce(make_interval(secs => %(delay_sec)s), {backoff})
               AS run_again_at
      FROM attempt AS job
      JOIN {error}
      JOIN policies AS policy ON {policy_of_job}
),
failed AS (
    UPDATE {table} AS job
       SET {status} = {status_by_verdict},
           {finished_at} = CASE WHEN verdict.requeues THEN NULL ELSE statement_timestamp() END,
           {next_earliest_run_at} = CASE WHEN verdict.requeues THEN verdict.run_again_at
                                         ELSE job.{next_earliest_run_at} END,
           {fail_code} = left(verdict.fail_code, {longest_fail_code}),
           {fail_reason} = left(coalesce(verdict.fail_reason, {no_fail_reason}),
                                {longest_fail_reason}),
           {last_report}
           {unlock}
      FROM verdict
     WHERE job.{id} = verdict.id
       AND job.{id} = ANY (ARRAY(SELECT id FROM verdict))
    RETURNING verdict.*, job.{fail_code} AS written_code, job.{fail_reason} AS written_reason
),
happened (job_id, type, details) AS (
    SELECT attempt.id::text,
           CASE WHEN attempt.requeues THEN {job_retried} ELSE {job_failed} END,
           jsonb_build_object(
               {attempt_details},
               'fail_code', attempt.written_code,
               'fail_reason', attempt.written_reason,
               'exception', attempt.exception,
               'traceback', attempt.traceback,
               'next_earliest_run_at', CASE WHEN attempt.requeues THEN
                   to_char(attempt.run_again_at AT TIME ZONE 'UTC', {iso_utc}) END)
      FROM failed AS attempt
     WHERE {all_written}
)


-- name: released
{status} = {queued},
{attempt_count} = GREATEST(job.{attempt_count} - 1, 0),


-- name: withdrawn
{released}
-- The function of the job may still run, and must not save it.
{lease_epoch} = job.{lease_epoch} + 1,


-- name: unlock
{touched}
{locked_by} = {no_locked_by},
{claimed_at} = NULL,
{lease_expires_at} = NULL,
{deadline_at} = NULL,
{no_stall}
{dispatched_at} = NULL
