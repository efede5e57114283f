-- Prune: delete a batch of the jobs that ended in this status longest ago, except for the first ones
-- that the database does not let go. A job to which other rows refer is kept, so nothing cascades.
WITH old AS MATERIALIZED (
    SELECT job."id" AS id
      FROM "jobreaper_jobs" AS job
     WHERE job."status" = 'success'
       AND job."finished_at" < statement_timestamp() - make_interval(secs => %(age_sec)s)
       AND true
     ORDER BY job."finished_at"
     LIMIT %(batch)s OFFSET %(kept)s
       FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM "jobreaper_jobs" AS job
     WHERE job."id" = ANY (ARRAY(SELECT id FROM old))
    RETURNING 1
)
SELECT count(*) FROM deleted WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
                                   -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
                                   -- an error, as of any row that cannot be written.
                                   (SELECT CASE WHEN count(*) = (SELECT count(*) FROM deleted) THEN true
                                                ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM deleted))::text
                                                      || ' row(s)')::boolean END
                                      FROM old)
