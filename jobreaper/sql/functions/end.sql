-- End an attempt: finish the job, give it back (release), or fail the attempt, which puts the job
-- back in the queue with backoff while attempts are left. False means that the lease was lost and
-- nothing was written.
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
    written record;
BEGIN
    {statement}
    INTO written;
    IF FOUND THEN
        RETURN true;
    END IF;
    -- It is lost, whether this can be recorded or not. OTHERS does not catch a failed ASSERT.
    BEGIN
        {reject}
        INTO written;
    EXCEPTION WHEN OTHERS OR assert_failure THEN
        IF {is_no_rows_fault} THEN
            RAISE;
        END IF;
        RAISE WARNING 'a rejected write could not be recorded: % (%)', SQLERRM, SQLSTATE;
    END;
    RETURN false;
END
$body$
