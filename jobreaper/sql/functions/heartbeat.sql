-- Renew a lease; false means that it is lost. Without an epoch the worker's name is the proof.
CREATE OR REPLACE FUNCTION {function}(job_id {id_type}, worker text, epoch bigint DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = {search_path}
SET TimeZone = {time_zone}
AS $body$
#variable_conflict use_column
DECLARE
    held_epoch bigint := coalesce({function}.epoch, {epoch_of_worker});
    found record;
BEGIN
    {statement}
    INTO found;
    RETURN coalesce(found.held AND found.epoch = held_epoch, false);
END
$body$
