-- Rows that the database refuses to write: tried alone, remembered, tried again, forgotten.

-- name: one_by_one
-- The body of a DO: the candidates of a verb are tried one by one. The results are in a cursor,
-- because a DO does not return a result.
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    candidate record;
    taken record;
    said text;
    tried jsonb[] := '{{}}';
    answer refcursor := {cursor};
BEGIN
    {one_by_one}
    OPEN answer FOR
        SELECT one.*{key_as_read}
          FROM unnest(tried) WITH ORDINALITY AS each (try, place)
         CROSS JOIN LATERAL jsonb_to_record(each.try) AS one (
               key text, refusal text,
               id {id_type}, stage text, reason text, fail_code text, locked_by text,
               attempt_count bigint, lease_epoch bigint, overdue_ms bigint, run_again_in_ms bigint)
         ORDER BY each.place;
END


-- name: remember_refused
-- Remember rows that could not be written, and leave them out for a minute, twice as long each
-- further time, up to an hour. In the order of their keys, so that two passes do not wait for each
-- other.
INSERT INTO {jobreaper_refused_rows} AS refused
       ("table", verb, key, error, tries, next_try_at)
SELECT %(table)s, %(verb)s, given.key, given.error, 1,
       statement_timestamp() + {first_pause}
  FROM unnest(%(keys)s::text[], %(errors)s::text[]) AS given (key, error)
 ORDER BY given.key
ON CONFLICT ("table", verb, key) DO UPDATE
   SET error = excluded.error,
       tries = refused.tries + 1,
       next_try_at = statement_timestamp()
           + LEAST({first_pause} * 2 ^ LEAST(refused.tries, 20), {longest_pause})
 WHERE refused.next_try_at <= statement_timestamp()
RETURNING key


-- name: due_refused
-- Whether a remembered row is due for another try.
SELECT FROM {jobreaper_refused_rows}
 WHERE "table" = %(table)s
   AND verb = %(verb)s
   AND next_try_at <= statement_timestamp()


-- name: forget_refused
-- Forget rows that could be written. If all rows that were due before a moment have been tried,
-- also forget those that were not found: they are finished or deleted, or have a valid lease again,
-- and are not only locked.
DELETE FROM {jobreaper_refused_rows}
 WHERE "table" = %(table)s
   AND verb = %(verb)s
   AND (key = ANY (%(written)s::text[])
        OR %(all_tried)s
           AND next_try_at <= %(before)s
           AND key <> ALL (%(locked)s::text[]))
RETURNING key


-- name: forget_unqueued
-- Forget the rows that could not be claimed and are not queued any more: they were claimed, have ended
-- or are gone.
DELETE FROM {jobreaper_refused_rows} AS refused
 WHERE refused."table" = {table_name}
   AND refused.verb = {verb_claim}
   AND NOT EXISTS (SELECT
                     FROM {table} AS job
                    WHERE job.{id} = refused.key::{id_type}
                      AND {is_queued})
RETURNING refused.key


-- name: refused
-- The rows of some tables that cannot be written: the first ones of each to try again, how many
-- there are, and how many of them are due.
SELECT "table", total, due, to_claim, statement_timestamp(), key, since, error, tries, next_try_at
  FROM (SELECT refused.*,
               count(*) OVER of_table AS total,
               count(*) FILTER (WHERE verb = {reap} AND next_try_at <= statement_timestamp())
                   OVER of_table AS due,
               count(*) FILTER (WHERE verb = {claim}) OVER of_table AS to_claim,
               row_number() OVER (of_table ORDER BY next_try_at, id) AS place
          FROM {jobreaper_refused_rows} AS refused
         WHERE "table" = ANY (%(tables)s::text[])
        WINDOW of_table AS (PARTITION BY "table")) AS refused
 WHERE place <= %(most)s
 ORDER BY "table", place


-- name: refused_by_table
-- How many rows of each table cannot be written.
SELECT "table", count(*) FROM {jobreaper_refused_rows} GROUP BY "table"
