-- Renew a lease; false means that it is lost.
CREATE OR REPLACE FUNCTION {name}(job_id {id_type}, worker text, epoch bigint DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = {search_path}
SET TimeZone = {time_zone}
SET DateStyle = 'ISO'
AS $body$
#variable_conflict use_column
DECLARE
    {held_epoch};
    beat record;
BEGIN
    {statement}
    INTO beat;
    RETURN coalesce(beat.held AND beat.epoch = held_epoch, false);
END
$body$
