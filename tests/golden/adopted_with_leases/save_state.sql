-- Save it if the lease still stands. If no row is returned, the lease was lost and nothing was
-- written.
WITH held AS MATERIALIZED (
    SELECT job."Number" AS id
      FROM "office"."Errands" AS job
     WHERE job."Number" = %(id)s::bigint
       AND job."fence" = %(epoch)s
       AND job."worker"::text = %(worker)s
       AND job."State" IN ('running', 'finishing')
       AND NOT EXISTS (SELECT FROM jsonb_each_text(%(session)s::jsonb) AS own
                        WHERE own.value <> coalesce(current_setting(own.key, true), ''))
       FOR NO KEY UPDATE
)
INSERT INTO jobreaper_states ("table", job_id, state, epoch)
SELECT 'office.Errands', held.id::text, %(state)s::jsonb, %(epoch)s
  FROM held
ON CONFLICT ("table", job_id) DO UPDATE
   SET state = excluded.state, epoch = excluded.epoch, saved_at = statement_timestamp()
RETURNING true
