-- What PostgreSQL knows of a table.

-- name: columns
-- A table's columns, each with its comment.
SELECT attname, col_description(attrelid, attnum)
  FROM pg_attribute
 WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped


-- name: table_as_it_is
-- A table as this session sees it: its columns, whether rows are hidden from it, and the session's
-- role. If no row is returned, the session cannot see such a table. A domain is reported as its
-- base type.
SELECT (SELECT jsonb_object_agg(attname, jsonb_build_object(
                   'type', format_type(base.oid, NULL),
                   'own_type', format_type(atttypid, NULL),
                   'is_domain_of_enum', own.typtype = 'd' AND base.typtype = 'e',
                   'may_be_null', NOT (attnotnull OR own.typnotnull),
                   'max_length', CASE WHEN base.oid IN ('varchar'::regtype, 'bpchar'::regtype) THEN
                       nullif(GREATEST(atttypmod, own.typtypmod, 0), 0) - 4 END))::text
          FROM pg_attribute
          JOIN pg_type AS own ON own.oid = atttypid
          JOIN pg_type AS base ON base.oid = coalesce(nullif(own.typbasetype, 0), own.oid)
         WHERE attrelid = class.oid AND attnum > 0 AND NOT attisdropped),
       {hides_rows},
       current_user::text
  FROM pg_class AS class
 WHERE class.oid = CASE WHEN coalesce(has_schema_privilege(to_regnamespace(%(schema)s), 'USAGE'), true)
                        THEN to_regclass(%(table)s) END


-- name: hidden
-- Of these tables, those of which row-level security hides rows from this session's role, and the role.
-- Nothing that reads hidden rows raises an error.
SELECT name, current_user::text
  FROM unnest(%(tables)s::text[]) AS name
  JOIN pg_class AS class ON class.oid = to_regclass(name)
 WHERE {hides_rows}


-- name: index_is_valid
-- Whether an index of a table is valid; no row if the name does not exist or is that of another
-- table's index.
SELECT indisvalid
  FROM pg_index
 WHERE indexrelid = to_regclass(%(index)s) AND indrelid = to_regclass(%(table)s)


-- name: partitions
-- The direct partitions of a table, and whether each has its part of an index of the table.
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


-- name: foreign_keys
-- The foreign keys that refer to a table: the schema, the table, its columns, the columns referred
-- to, and whether it is the table itself. A partitioned table appears once, not for each partition.
SELECT namespace.nspname,
       class.relname,
       ARRAY(SELECT attribute.attname::text
               FROM unnest(reference.conkey) WITH ORDINALITY AS key (number, place)
               JOIN pg_attribute AS attribute
                 ON attribute.attrelid = reference.conrelid AND attribute.attnum = key.number
              ORDER BY key.place),
       ARRAY(SELECT attribute.attname::text
               FROM unnest(reference.confkey) WITH ORDINALITY AS key (number, place)
               JOIN pg_attribute AS attribute
                 ON attribute.attrelid = reference.confrelid AND attribute.attnum = key.number
              ORDER BY key.place),
       reference.conrelid = reference.confrelid
  FROM pg_constraint AS reference
  JOIN pg_class AS class ON class.oid = reference.conrelid
  JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
 WHERE reference.contype = 'f'
   AND reference.confrelid = to_regclass(%(table)s)
   AND reference.conparentid = 0
 ORDER BY namespace.nspname, class.relname, reference.conname


-- name: estimate
-- The number of rows of a table, according to the last ANALYZE or VACUUM, without reading it. -1 if
-- neither ran.
SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%(table)s)


-- name: plan
-- How many jobs have a status, as the planner estimates it, without reading a row.
EXPLAIN (FORMAT JSON) SELECT FROM {table} AS job WHERE {has_status}
