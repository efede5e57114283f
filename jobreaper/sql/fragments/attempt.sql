-- An attempt: how it is read, how events report it, how it is counted.

-- name: attempt_columns
job.{id} AS id,
job.{locked_by} AS locked_by,
job.{stage} AS stage,
{attempts_of_job} AS attempt_count,
{max_attempts_of_job} AS max_attempts,
job.{lease_epoch} AS lease_epoch,
job.{claimed_at} AS claimed_at,
{metered_columns}
CASE WHEN isfinite(job.{next_earliest_run_at}) AND isfinite(job.{claimed_at}) THEN
    GREATEST(extract(epoch FROM job.{claimed_at} - job.{next_earliest_run_at}) * 1000, 0) END
    AS due_to_claim_ms


-- name: attempt_details
'locked_by', attempt.locked_by,
'stage', attempt.stage,
'attempt', attempt.attempt_count,
'epoch', attempt.lease_epoch,
'claimed_at', to_char(attempt.claimed_at AT TIME ZONE 'UTC', {iso_utc}),
{metered_details}
'queue_wait_ms', round(attempt.due_to_claim_ms + attempt.claim_to_start_ms)::bigint,
'duration_ms', attempt.duration_ms


-- name: attempts_by_events
-- A job that failed and was requeued by hand starts from scratch.
(SELECT 1 + count(*)::int
   FROM {job_events} AS event
  WHERE event.job_id = {key_as_text}
    AND event."table" = {table_name}
    AND event.type = {reaper_requeued}
    AND event.id > coalesce((SELECT max(ended.id)
                               FROM {job_events} AS ended
                              WHERE ended.job_id = {key_as_text}
                                AND ended."table" = {table_name}
                                AND ended.type = {reaper_failed_timeout}), 0))
