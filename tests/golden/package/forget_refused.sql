-- Forget rows that could be written. If all rows that were due before a moment have been tried,
-- also forget those that were not found: they are finished or deleted, or have a valid lease again,
-- and are not only locked.
DELETE FROM jobreaper_refused_rows
 WHERE "table" = %(table)s
   AND verb = %(verb)s
   AND (key = ANY (%(written)s::text[])
        OR %(all_tried)s
           AND next_try_at <= %(before)s
           AND key <> ALL (%(locked)s::text[]))
RETURNING key
