-- Take the leases of at most n due jobs, or the lease of the job job_id, and return the jobs. A job
-- that cannot be written is left out and remembered. If it is the job job_id, its error is raised.
CREATE OR REPLACE FUNCTION {name}(
    worker text, n int DEFAULT 1, stages text[] DEFAULT NULL, job_id {id_type} DEFAULT NULL)
RETURNS SETOF {table}
LANGUAGE plpgsql VOLATILE
SET search_path = {search_path}
SET TimeZone = {time_zone}
SET DateStyle = 'ISO'
AS $body$
#variable_conflict use_column
<<this_call>>
DECLARE
    -- Their names differ from the statements' names of rows: otherwise, a missing column would be
    -- looked for in them.
    taken record;
    candidate record;
    said text;
    began timestamptz := clock_timestamp();
    most int := {function}.n;
    deferred text := {deferred_checks};
    -- For the jobs that are tried one by one.
    has_more boolean := true;
    tried {id_type}[] := '{{}}';
    refused text[] := '{{}}';
    refusals text[] := '{{}}';
BEGIN
    {lock_claims}
    IF deferred IS NULL OR {function}.job_id IS NOT NULL THEN
        LOOP
            BEGIN
                RETURN QUERY {statement};
                IF most = {function}.n THEN
                    RETURN;
                END IF;
                EXIT;
            -- OTHERS does not catch a failed ASSERT in a trigger.
            EXCEPTION WHEN OTHERS OR assert_failure THEN
                -- If the table refuses even a claim of no rows, the problem is the table itself.
                IF most <= 0 OR {function}.job_id IS NOT NULL OR {is_no_rows_fault} THEN
                    RAISE;
                END IF;
                most := 0;
            END;
        END LOOP;
        most := {function}.n;
    END IF;
    WHILE most > 0 AND has_more
        AND clock_timestamp() < began + {search_sec} * interval '1 second'
    LOOP
        has_more := false;
        {one_by_one}
    END LOOP;
    BEGIN
        FOR taken IN {remember_refused} LOOP END LOOP;
    EXCEPTION WHEN OTHERS THEN
        {words_of_error}
        RAISE WARNING 'jobs that cannot be claimed are not remembered: % (%)', said, SQLSTATE;
    END;
END
$body$
