-- Whether an index of a table serves; no row where the name is nobody's or another table's.
SELECT indisvalid
  FROM pg_index
 WHERE indexrelid = to_regclass(%(index)s) AND indrelid = to_regclass(%(table)s)
