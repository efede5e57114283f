-- A table's columns, each with its comment.
SELECT attname, col_description(attrelid, attnum)
  FROM pg_attribute
 WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped
