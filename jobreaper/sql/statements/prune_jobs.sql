-- Prune: delete a batch of the jobs that reached this end longest ago. A job that other rows still
-- refer to is kept, so nothing cascades.
WITH old AS MATERIALIZED (
    SELECT job.{id} AS id
      FROM {table} AS job
     WHERE {has_ended}
       AND job.{finished_at} < statement_timestamp() - make_interval(secs => %(age_sec)s)
       AND {is_unreferenced}
     ORDER BY job.{finished_at}
     LIMIT %(batch)s
       FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM {table} AS job
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM old))
    RETURNING 1
)
SELECT count(*) FROM deleted
