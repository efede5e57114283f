-- Prune: delete a batch of the oldest records. By ctid, because an adopted job_events may
-- have no index on its id.
WITH old AS MATERIALIZED (
    SELECT ctid
      FROM "job_events"
     WHERE "at" < statement_timestamp() - make_interval(secs => %(age_sec)s)
     ORDER BY "at"
     LIMIT %(batch)s OFFSET %(kept)s
       FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM "job_events"
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))
    RETURNING 1
)
SELECT count(*) FROM deleted WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
                                   -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
                                   -- an error, as of any row that cannot be written.
                                   (SELECT CASE WHEN count(*) = (SELECT count(*) FROM deleted) THEN true
                                                ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM deleted))::text
                                                      || ' row(s)')::boolean END
                                      FROM old)
