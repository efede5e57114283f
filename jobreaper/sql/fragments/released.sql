released AS (
    UPDATE {table} AS job
       SET {status} = {queued},
           {attempt_count} = GREATEST(job.{attempt_count} - 1, 0),
           {unlock}
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM attempt))
),
{ended}
