-- Fail: this attempt went wrong. Back to the queue with backoff while attempts are left and the
-- error may be retried, failed otherwise.
WITH policies AS MATERIALIZED ({policies}),
{attempt},
verdict AS MATERIALIZED (
    SELECT job.*,
           %(retry)s AND job.attempt_count < job.max_attempts AS requeues,
           statement_timestamp() + coalesce(make_interval(secs => %(delay_sec)s), {backoff})
               AS run_again_at
      FROM attempt AS job
      JOIN policies AS policy ON {policy_of_job}
),
ended AS (
    UPDATE {table} AS job
       SET {status} = {status_by_verdict},
           {finished_at} = CASE WHEN verdict.requeues THEN NULL ELSE statement_timestamp() END,
           {next_earliest_run_at} = CASE WHEN verdict.requeues THEN verdict.run_again_at
                                         ELSE job.{next_earliest_run_at} END,
           {fail_code} = %(fail_code)s,
           {fail_reason} = left(coalesce(%(fail_reason)s, {no_fail_reason}), {longest_fail_reason}),
           {unlock}
      FROM verdict
     WHERE job.{id} = verdict.id
    RETURNING verdict.*, job.{fail_code} AS fail_code, job.{fail_reason} AS fail_reason
),
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT attempt.id::text,
           jsonb_build_object(
               'type', CASE WHEN attempt.requeues THEN {job_retried} ELSE {job_failed} END,
               'table', {table_name}::text,
               'details', jsonb_build_object(
                   {attempt_details},
                   'fail_code', attempt.fail_code,
                   'fail_reason', attempt.fail_reason,
                   'next_earliest_run_at', CASE WHEN attempt.requeues THEN
                       to_char(attempt.run_again_at AT TIME ZONE 'UTC', {iso_utc}) END),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM ended AS attempt
    RETURNING data
)
SELECT data::text FROM event
