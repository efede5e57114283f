-- The policies of all stages, rendered from the settings; the stage '' is the default.
CREATE OR REPLACE FUNCTION {function}()
RETURNS TABLE ({policy_columns})
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $body$
SELECT * FROM jsonb_to_recordset({policies_json}::jsonb) AS policy ({policy_columns})
$body$
