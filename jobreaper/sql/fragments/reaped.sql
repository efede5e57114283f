-- What a verdict changes, counts and returns.

-- name: status_by_verdict
-- The last branch is never used. It gives the words the type of the column, which may be an enum.
CASE WHEN verdict.requeues THEN {queued}
     WHEN NOT verdict.requeues THEN {failed}
     ELSE job.{status} END


-- name: reaped
-- `= ANY (ARRAY(...))` makes the planner find the jobs by their keys. With only a join on the
-- verdicts, it may read the whole table for every batch.
reaped AS (
    UPDATE {table} AS job
       SET {status} = {status_by_verdict},
           {lease_epoch} = verdict.lease_epoch + 1,
           {reap_count} = verdict.reap_count + verdict.reaps,
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


-- name: counted
counted AS (
    INSERT INTO {jobreaper_totals} (name, "table", stage, count, microseconds)
    SELECT CASE WHEN requeues THEN {requeues} ELSE {failures} END, {table_name},
           left(coalesce(stage, ''), {longest_name}), count(*),
           LEAST(coalesce(sum(overdue_ms), 0) * 1000, {largest})
      FROM reaped
     GROUP BY requeues, left(coalesce(stage, ''), {longest_name})
     UNION ALL
    SELECT {taken_back} || reason, {table_name}, '', count(*), 0
      FROM reaped
     GROUP BY reason
)


-- name: reaped_columns
id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
CASE WHEN requeues THEN
    round(extract(epoch FROM run_again_at - statement_timestamp()) * 1000)::bigint
END AS run_again_in_ms{key_as_read}


-- name: reaped_row
{function}.job_id := taken.id::text;
{function}.outcome := CASE WHEN taken.fail_code IS NULL THEN 'requeued' ELSE 'failed' END;
requeued := requeued + (taken.fail_code IS NULL)::int;
failed := failed + (taken.fail_code IS NOT NULL)::int;
RETURN NEXT;
