coalesce({kind}, '') <> ALL (ARRAY(
    SELECT name FROM jobreaper_pauses WHERE "table" = {table_name}))
