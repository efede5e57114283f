#variable_conflict use_column
DECLARE
    held_epoch bigint := coalesce({function}.epoch, {epoch_of_worker});
    written record;
BEGIN
    {statement}
    INTO written;
    IF FOUND THEN
        RETURN true;
    END IF;
    {reject}
    INTO written;
    RETURN false;
END
