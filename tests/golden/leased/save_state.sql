-- Save it if the lease still stands. If no row is returned, the lease was lost and nothing was
-- written.
WITH held AS MATERIALIZED (
    SELECT job."id" AS id
      FROM "jobs" AS job
     WHERE job."id" = %(id)s::bigint
       AND job."lease_epoch" = %(epoch)s
       AND job."locked_by"::text = %(worker)s
       AND job."status" = 'processing'
       AND NOT EXISTS (SELECT FROM jsonb_each_text(%(session)s::jsonb) AS own
                        WHERE own.value <> coalesce(current_setting(own.key, true), ''))
       FOR NO KEY UPDATE
)
INSERT INTO jobreaper_states ("table", job_id, state, epoch)
SELECT 'jobs', held.id::text, %(state)s::jsonb, %(epoch)s
  FROM held
ON CONFLICT ("table", job_id) DO UPDATE
   SET state = excluded.state, epoch = excluded.epoch, saved_at = statement_timestamp()
RETURNING true
