-- Presence: a worker in another language ends and has given back what it held. False where it was not
-- here.
CREATE OR REPLACE FUNCTION {name}(worker text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = {search_path}
AS $body$
#variable_conflict use_column
BEGIN
    PERFORM pg_advisory_unlock_shared(held.key)
       FROM ({presence_locks}) AS held
      WHERE held.pid = pg_backend_pid()
        AND held.key = {key_of_worker};
    {left};
    RETURN FOUND;
END
$body$
