-- Remember rows that could not be written, and leave them out for a minute, twice as long each
-- further time, up to an hour. In the order of their keys, so that two passes do not wait for each
-- other.
INSERT INTO jobreaper_refused_rows AS refused
       ("table", verb, key, error, tries, next_try_at)
SELECT %(table)s, %(verb)s, given.key, given.error, 1,
       statement_timestamp() + interval '1 minute'
  FROM unnest(%(keys)s::text[], %(errors)s::text[]) AS given (key, error)
 ORDER BY given.key
ON CONFLICT ("table", verb, key) DO UPDATE
   SET error = excluded.error,
       tries = refused.tries + 1,
       next_try_at = statement_timestamp()
           + LEAST(interval '1 minute' * 2 ^ LEAST(refused.tries, 20), interval '1 hour')
 WHERE refused.next_try_at <= statement_timestamp()
RETURNING key
