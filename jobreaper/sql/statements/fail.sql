-- Fail: this attempt went wrong. Back to the queue with backoff while attempts are left and the
-- error may be retried, failed otherwise.
WITH policies AS MATERIALIZED ({policies}),
{attempt},
ended AS (
    UPDATE {table} AS job
       SET status = CASE WHEN %(retry)s AND job.attempt_count < job.max_attempts
                         THEN {queued} ELSE {failed} END,
           finished_at = CASE WHEN %(retry)s AND job.attempt_count < job.max_attempts
                              THEN NULL ELSE statement_timestamp() END,
           next_earliest_run_at = CASE WHEN %(retry)s AND job.attempt_count < job.max_attempts
                                       THEN statement_timestamp() + coalesce(
                                           make_interval(secs => %(delay_sec)s), {backoff})
                                       ELSE job.next_earliest_run_at END,
           fail_code = %(fail_code)s,
           fail_reason = %(fail_reason)s,
           {unlock}
      FROM attempt, policies AS policy
     WHERE job.{id} = attempt.id
       AND {policy_of_job}
    RETURNING attempt.id, job.status, job.next_earliest_run_at, job.fail_code, job.fail_reason
),
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT attempt.id::text,
           jsonb_build_object(
               'type', CASE ended.status WHEN {queued} THEN {job_retried} ELSE {job_failed} END,
               'table', {table_name}::text,
               'details', jsonb_build_object(
                   {attempt_details},
                   'fail_code', ended.fail_code,
                   'fail_reason', ended.fail_reason,
                   'next_earliest_run_at', CASE WHEN ended.status = {queued} THEN
                       to_char(ended.next_earliest_run_at AT TIME ZONE 'UTC', {iso_utc}) END),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM ended JOIN attempt USING (id)
    RETURNING data
)
SELECT data::text FROM event
