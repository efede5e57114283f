-- How many jobs have a status, as the planner sees it: no row is read.
EXPLAIN (FORMAT JSON) SELECT FROM {table} AS job WHERE {has_status}
