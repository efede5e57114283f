-- Reap: one batch of expired leases goes back to the queue, or fails where no attempt is left.
--
-- `= ANY (ARRAY(…))` makes the planner look the batch up by its keys; joined on the verdicts alone
-- it may read the whole table for every batch.
WITH {verdicts},
reaped AS (
    UPDATE {table} AS job
       SET status = CASE WHEN verdict.requeues THEN {queued} ELSE {failed} END,
           lease_epoch = job.lease_epoch + 1,
           reap_count = job.reap_count + 1,
           attempt_count = job.attempt_count - verdict.attempts_given_back,
           next_earliest_run_at = CASE WHEN verdict.requeues THEN verdict.run_again_at
                                       ELSE job.next_earliest_run_at END,
           finished_at = CASE WHEN verdict.requeues THEN job.finished_at
                              ELSE statement_timestamp() END,
           fail_code = CASE WHEN verdict.requeues THEN job.fail_code
                            ELSE verdict.fail_code END,
           fail_reason = CASE WHEN verdict.requeues THEN job.fail_reason
                              ELSE verdict.reason END,
           {unlock}
      FROM verdict
     WHERE job.{id} = verdict.id
       AND job.{id} = ANY (ARRAY(SELECT id FROM verdict))
    RETURNING verdict.*
),
event AS (
    INSERT INTO job_events (job_id, data)
    SELECT reaped.id::text,
           jsonb_build_object(
               'type', CASE reaped.fail_code
                       WHEN {timeout} THEN {reaper_failed_timeout}
                       WHEN {poison} THEN {reaper_failed_poison}
                       WHEN {deadline} THEN {reaper_failed_deadline}
                       ELSE {reaper_requeued} END,
               'table', {table_name}::text,
               'details', jsonb_build_object(
                   'reason', reaped.reason,
                   'locked_by', reaped.locked_by,
                   'stage', reaped.stage,
                   'attempt', reaped.attempt_count,
                   'epoch', reaped.lease_epoch,
                   'lease_expires_at',
                       to_char(reaped.lease_expires_at AT TIME ZONE 'UTC', {iso_utc}),
                   'overdue_ms', reaped.overdue_ms,
                   'reaper', %(reaper)s::text,
                   'next_earliest_run_at', CASE WHEN reaped.requeues THEN
                       to_char(reaped.run_again_at AT TIME ZONE 'UTC', {iso_utc}) END),
               'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {iso_utc}))
      FROM reaped
)
SELECT id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
       CASE WHEN requeues THEN run_again_at END
  FROM reaped
