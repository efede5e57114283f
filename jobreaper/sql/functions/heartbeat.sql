-- Renew a lease, and record how far the job is if that is told; false means that it is lost.
CREATE OR REPLACE FUNCTION {name}({parameters})
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
    {checked}
    {statement}
    INTO beat;
    RETURN coalesce(beat.held AND beat.epoch = held_epoch, false);
END
$body$
