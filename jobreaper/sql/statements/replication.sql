-- What logical replication has left in a database.

-- name: subscribed
-- The subscriptions that write to some tables, each with its tables.
SELECT subscription.subname, string_agg(given.name, ', ' ORDER BY given.name)
  FROM unnest(%(tables)s::text[]) AS given (name)
  JOIN pg_subscription_rel AS target ON target.srrelid = to_regclass(given.name)
  JOIN pg_subscription AS subscription ON subscription.oid = target.srsubid
 GROUP BY subscription.subname
 ORDER BY subscription.subname


-- name: sequences
-- Of these tables and keys, those whose key has a sequence that this role may read.
SELECT given.name, given.key
  FROM unnest(%(tables)s::text[], %(keys)s::text[]) AS given (name, key)
  JOIN pg_attribute
    ON attrelid = CASE WHEN has_table_privilege(to_regclass(given.name), 'SELECT')
                       THEN to_regclass(given.name) END
   AND attname = given.key
   AND NOT attisdropped
 -- In a CASE, so that a table that does not exist is never asked for its sequence.
 WHERE CASE WHEN attnum > 0 THEN
           has_sequence_privilege(pg_get_serial_sequence(given.name, given.key), 'USAGE, SELECT') END


-- name: behind
-- The sequence of a key whose next value is not beyond the highest one in the table.
SELECT sequence.id::text, highest.key
  FROM (SELECT pg_get_serial_sequence({table_in_text}, {key_in_text})::regclass AS id) AS sequence
  JOIN pg_sequence ON seqrelid = sequence.id AND seqincrement > 0
 CROSS JOIN (SELECT max({key}) AS key FROM {table}) AS highest
 WHERE highest.key >= coalesce(pg_sequence_last_value(sequence.id) + seqincrement, seqstart)
