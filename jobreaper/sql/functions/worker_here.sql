-- Presence of a worker in another language: hold its lock on this session and say that it is here. To
-- be called again with each heartbeat. False: what it held is being taken back, so call again in a
-- moment. NULL: the session belongs to a pooler, so its leases alone decide.
CREATE OR REPLACE FUNCTION {name}(
    worker text, backend_pid int DEFAULT NULL, leases int DEFAULT 0, runs text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = {search_path}
AS $body$
#variable_conflict use_column
DECLARE
    is_held boolean;
BEGIN
    {lock}
    INTO is_held;
    IF is_held IS NOT false THEN
        {note};
    END IF;
    RETURN is_held;
END
$body$
