-- Dry run of a reap: the same verdicts, nothing locked and nothing written.
WITH {verdicts}
SELECT id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
       CASE WHEN requeues THEN
           round(extract(epoch FROM run_again_at - statement_timestamp()) * 1000)::bigint END
  FROM verdict
 ORDER BY ended_at
