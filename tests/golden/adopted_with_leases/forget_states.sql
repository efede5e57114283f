-- Forget what jobs have saved that are finished.
DELETE FROM jobreaper_states
 WHERE "table" = 'office.Errands'
   AND NOT EXISTS (SELECT FROM jsonb_each_text(%(session)s::jsonb) AS own
                    WHERE own.value <> coalesce(current_setting(own.key, true), ''))
   AND job_id = ANY (ARRAY(SELECT id::text FROM unnest(%(ids)s::bigint[]) AS id))
RETURNING true
