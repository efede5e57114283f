-- `= ANY (ARRAY(…))` makes the planner look the jobs up by their keys; joined on the verdicts alone
-- it may read the whole table for every batch.
reaped AS (
    UPDATE {table} AS job
       SET {status} = {status_by_verdict},
           {lease_epoch} = verdict.lease_epoch + 1,
           {reap_count} = verdict.reap_count + 1,
           {attempt_count} = GREATEST(verdict.attempt_count - verdict.attempts_given_back, 0),
           {next_earliest_run_at} = CASE WHEN verdict.requeues THEN verdict.run_again_at
                                         ELSE job.{next_earliest_run_at} END,
           {finished_at} = CASE WHEN verdict.requeues THEN job.{finished_at}
                                ELSE statement_timestamp() END,
           {fail_code} = CASE WHEN verdict.requeues THEN job.{fail_code}
                              ELSE left(verdict.fail_code, {longest_fail_code}) END,
           {fail_reason} = CASE WHEN verdict.requeues THEN job.{fail_reason}
                                ELSE left(coalesce(verdict.fail_reason, verdict.reason),
                                          {longest_fail_reason}) END,
           {unlock}
      FROM verdict
     WHERE job.{id} = verdict.id
       AND job.{id} = ANY (ARRAY(SELECT id FROM verdict))
    RETURNING verdict.*
)
