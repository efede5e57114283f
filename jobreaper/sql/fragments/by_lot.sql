-- The younger the likelier to come first: rows that cannot be written grow old.
(extract(epoch FROM statement_timestamp())::float8
 - extract(epoch FROM ({time})::timestamptz)::float8) * random()
