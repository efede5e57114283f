-- How many rows of each table cannot be written.
SELECT "table", count(*) FROM jobreaper_refused_rows GROUP BY "table"
