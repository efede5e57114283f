-- An operator requeues, fails or cancels jobs. The epoch increases, so that a worker that is still
-- running one is told at its next heartbeat. A requeued job starts from scratch, with all its
-- attempts.
--
-- A CASE converts the target to the table's word. Its last branch is never used; it gives the words
-- the type of the column, which may be an enum, and the parameter remains a text.
WITH job_before AS MATERIALIZED (
    SELECT job.{id} AS id,
           job.{status} AS status,
           job.{stage} AS stage,
           job.{locked_by} AS locked_by,
           job.{attempt_count} AS attempt_count,
           job.{lease_epoch} AS lease_epoch
      FROM {table} AS job
     WHERE job.{id} = ANY (%(ids)s::{id_type}[])
       AND job.{status}::text = ANY (%(sources)s::text[])
       AND {key_is_free}
     ORDER BY job.{id}
       FOR NO KEY UPDATE
),
changed AS (
    UPDATE {table} AS job
       SET {status} = CASE %(target)s WHEN {queued} THEN {queued}
                                    WHEN {failed} THEN {failed}
                                    WHEN {cancelled} THEN {cancelled}
                                    ELSE job.{status} END,
           {lease_epoch} = coalesce(job.{lease_epoch}, 0) + 1,
           {attempt_count} = CASE WHEN %(target)s = {queued} THEN 0 ELSE job.{attempt_count} END,
           {reap_count} = CASE WHEN %(target)s = {queued} THEN 0 ELSE job.{reap_count} END,
           {next_earliest_run_at} = CASE WHEN %(target)s = {queued} THEN statement_timestamp()
                                         ELSE job.{next_earliest_run_at} END,
           {finished_at} = CASE WHEN %(target)s = {queued} THEN NULL
                                ELSE statement_timestamp() END,
           {fail_code} = CASE %(target)s WHEN {queued} THEN {no_fail_code}
                                         WHEN {failed} THEN
                                             left(%(fail_code)s, {longest_fail_code})
                                         ELSE job.{fail_code} END,
           {fail_reason} = CASE %(target)s WHEN {queued} THEN {no_fail_reason}
                                           WHEN {failed} THEN
                                               left(coalesce(%(reason)s, {no_fail_reason}),
                                                    {longest_fail_reason})
                                           ELSE job.{fail_reason} END,
           {unlock}
      FROM job_before
     WHERE job.{id} = job_before.id
    RETURNING job_before.id
),
happened (job_id, type, details) AS (
    SELECT job_before.id::text,
           %(event)s::text,
           jsonb_build_object(
               'by', %(by)s::text,
               'reason', %(reason)s::text,
               'from_status', job_before.status,
               'locked_by', job_before.locked_by,
               'stage', job_before.stage,
               'attempt', job_before.attempt_count,
               'epoch', job_before.lease_epoch)
      FROM changed JOIN job_before USING (id)
),
{event}
SELECT id{key_as_read} FROM changed WHERE {all_written}
