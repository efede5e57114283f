-- The partitions right below a table, and whether each has its part of an index of the table.
SELECT class.relname,
       namespace.nspname,
       class.relkind,
       EXISTS (SELECT FROM pg_inherits AS attached
                 JOIN pg_index AS part ON part.indexrelid = attached.inhrelid
                WHERE attached.inhparent = to_regclass(%(index)s)
                  AND part.indrelid = class.oid
                  AND part.indisvalid)
  FROM pg_inherits AS partition
  JOIN pg_class AS class ON class.oid = partition.inhrelid
  JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
 WHERE partition.inhparent = to_regclass(%(table)s)
 ORDER BY class.relname
