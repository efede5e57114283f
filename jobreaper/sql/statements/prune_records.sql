-- Prune: delete a batch of the oldest events or passes. By ctid, since an adopted job_events may
-- have no index on its id.
WITH deleted AS (
    DELETE FROM {records}
     WHERE ctid = ANY (ARRAY(
           SELECT ctid
             FROM {records}
            WHERE {moment} < statement_timestamp() - make_interval(secs => %(age_sec)s)
            ORDER BY {moment}
            LIMIT %(batch)s
              FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM deleted
