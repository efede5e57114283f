unended AS (
    SELECT ending.id,
           (SELECT {is_processing}
              FROM {table} AS job
             WHERE job.{id} = ending.id
               AND job.{lease_epoch} = ending.epoch
               AND job.{locked_by}::text = %(worker)s) AS held
      FROM ending
     WHERE ending.id NOT IN (SELECT id FROM attempt)
)
SELECT id::text, coalesce(held, false), NULL FROM unended
 UNION ALL
SELECT job_id, NULL, data::text FROM event WHERE %(details)s
