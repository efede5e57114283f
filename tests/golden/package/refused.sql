-- The rows of some tables that cannot be written: the first ones of each to try again, how many
-- there are, and how many of them are due.
SELECT "table", total, due, to_claim, statement_timestamp(), key, since, error, tries, next_try_at
  FROM (SELECT refused.*,
               count(*) OVER of_table AS total,
               count(*) FILTER (WHERE verb = 'reap' AND next_try_at <= statement_timestamp())
                   OVER of_table AS due,
               count(*) FILTER (WHERE verb = 'claim') OVER of_table AS to_claim,
               row_number() OVER (of_table ORDER BY next_try_at, id) AS place
          FROM jobreaper_refused_rows AS refused
         WHERE "table" = ANY (%(tables)s::text[])
        WINDOW of_table AS (PARTITION BY "table")) AS refused
 WHERE place <= %(most)s
 ORDER BY "table", place
