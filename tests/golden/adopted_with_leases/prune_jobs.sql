-- Prune: delete a batch of the jobs that ended in this status longest ago, except for the first ones
-- that the database does not let go. A job to which other rows refer is kept, so nothing cascades.
WITH old AS MATERIALIZED (
    SELECT job."Number" AS id
      FROM "office"."Errands" AS job
     WHERE job."State" = 'completed'
       AND job."ended" < statement_timestamp() - make_interval(secs => %(age_sec)s)
       AND true
     ORDER BY job."ended"
     LIMIT %(batch)s OFFSET %(kept)s
       FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM "office"."Errands" AS job
     WHERE job."Number" = ANY (ARRAY(SELECT id FROM old))
    RETURNING 1
)
SELECT count(*) FROM deleted WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
                                   -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
                                   -- an error, as of any row that cannot be written.
                                   (SELECT CASE WHEN count(*) = (SELECT count(*) FROM deleted) THEN true
                                                ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM deleted))::text
                                                      || ' row(s)')::boolean END
                                      FROM old)
