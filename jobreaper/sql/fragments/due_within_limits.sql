{slots},
{sent_in_vain}
{due_or_more},
due AS (
    SELECT ranked.id
      FROM (SELECT job.{id} AS id,
                   slots.free,
                   row_number() OVER (
                       PARTITION BY job.{stage}
                       ORDER BY {by_priority}job.{next_earliest_run_at}, job.{id}) AS place
              FROM {table} AS job
              LEFT JOIN slots ON slots.stage = job.{stage}
             WHERE job.{id} = ANY (ARRAY(SELECT id FROM due_or_more))) AS ranked
     WHERE ranked.free IS NULL OR ranked.place <= ranked.free
)
