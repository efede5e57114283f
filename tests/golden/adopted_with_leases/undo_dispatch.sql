-- The broker did not accept these messages. They have to be sent again as soon as it does.
UPDATE "office"."Errands" AS job
   SET "sent" = NULL
  FROM unnest(%(ids)s::bigint[], %(dispatched_at)s::timestamptz[]) AS unsent (id, dispatched_at)
 WHERE job."Number" = unsent.id
   AND job."State" = 'waiting'
   AND job."sent" = unsent.dispatched_at
RETURNING job."Number"
