-- The broker did not accept these messages. They have to be sent again as soon as it does.
UPDATE "jobs" AS job
   SET "dispatched_at" = NULL
  FROM unnest(%(ids)s::bigint[], %(dispatched_at)s::timestamptz[]) AS unsent (id, dispatched_at)
 WHERE job."id" = unsent.id
   AND job."status" = 'queued'
   AND job."dispatched_at" = unsent.dispatched_at
RETURNING job."id"
