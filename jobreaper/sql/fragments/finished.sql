finished AS (
    UPDATE {table} AS job
       SET {status} = {success},
           {finished_at} = statement_timestamp(),
           {fail_code} = {no_fail_code},
           {fail_reason} = {no_fail_reason},
           {unlock}
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM attempt))
),
{ended}
