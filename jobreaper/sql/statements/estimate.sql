-- How many rows a table has, by the last ANALYZE or VACUUM: no row is read. -1 where neither ran.
SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%(table)s)
