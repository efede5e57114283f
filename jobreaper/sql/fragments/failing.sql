-- Back to the queue with backoff while attempts are left and the error may be retried, failed
-- otherwise. `= ANY (ARRAY(…))` makes the planner look the jobs up by their keys.
verdict AS MATERIALIZED (
    SELECT job.*,
           error.fail_code,
           error.fail_reason,
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
           {unlock}
      FROM verdict
     WHERE job.{id} = verdict.id
       AND job.{id} = ANY (ARRAY(SELECT id FROM verdict))
    RETURNING verdict.*, job.{fail_code} AS written_code, job.{fail_reason} AS written_reason
),
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT attempt.id::text,
           jsonb_build_object(
               'type', CASE WHEN attempt.requeues THEN {job_retried} ELSE {job_failed} END,
               'table', {table_name}::text,
               'details', jsonb_build_object(
                   {attempt_details},
                   'fail_code', attempt.written_code,
                   'fail_reason', attempt.written_reason,
                   'next_earliest_run_at', CASE WHEN attempt.requeues THEN
                       to_char(attempt.run_again_at AT TIME ZONE 'UTC', {iso_utc}) END),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM failed AS attempt
    RETURNING job_id, data
)
