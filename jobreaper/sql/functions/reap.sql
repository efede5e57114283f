-- One batch of a pass over the table, which is recorded as a pass. Call it until it returns
-- nothing.
CREATE OR REPLACE FUNCTION {name}(batch int DEFAULT 1000)
RETURNS TABLE (job_id text, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path = {search_path}
SET TimeZone = {time_zone}
SET DateStyle = 'ISO'
AS $body$
#variable_conflict use_column
<<this_call>>
DECLARE
    server record;
    -- Its name differs from the statements' names of rows: otherwise, a missing column would be
    -- looked for in it.
    taken record;
    candidate record;
    said text;
    began timestamptz := clock_timestamp();
    deferred text := {deferred_checks};
    -- A check at the COMMIT would undo the whole batch: then each row is tried alone.
    most int := CASE WHEN deferred IS NULL THEN batch ELSE 0 END;
    -- Rows that cannot be written: whether remembered ones are tried, and the result.
    again boolean;
    tried int := 0;
    tried_before int;
    skipped {id_type}[] := '{{}}';
    written text[] := '{{}}';
    locked text[] := '{{}}';
    refused text[];
    refusals text[];
    bad_rows int := 0;
    problems text[] := '{{}}';
    requeued int := 0;
    failed int := 0;
    reason_to_hold text;
    -- Leases of workers that fell silent by then are taken.
    silent_by timestamptz := 'infinity';
    silent_until timestamptz;
BEGIN
    {server_back}
    INTO server;
    IF server.up_sec < {grace_sec} THEN
        reason_to_hold := format('PostgreSQL came up %s s ago; workers have until %s s after that '
                                 'to beat again (RECOVERY_GRACE_SEC)',
                                 round(server.up_sec::numeric), {grace_in_words});
        silent_by := '-infinity';
    END IF;
    -- Nothing that misses hidden rows raises an error.
    FOR taken IN
        SELECT format({said_hidden}, {table_name}, current_user) AS words
          FROM pg_class AS class
         WHERE class.oid = {table_in_text}::regclass
           AND {hides_rows}
    LOOP
        problems := problems || taken.words;
        RAISE WARNING '%', taken.words;
    END LOOP;
    {look_around}
    IF silent_by > '-infinity' THEN
        LOOP
            BEGIN
                FOR taken IN
                    {statement}
                LOOP
                    {reaped_row}
                END LOOP;
                EXIT;
            -- OTHERS does not catch a failed ASSERT in a trigger.
            EXCEPTION WHEN OTHERS OR assert_failure THEN
                -- If the table refuses even a batch without rows, the problem is the table itself.
                IF most = 0 OR {is_no_rows_fault} THEN
                    RAISE;
                END IF;
                most := 0;
            END;
        END LOOP;
        again := most > 0;
        LOOP
            EXIT WHEN again AND NOT EXISTS ({due_refused});
            tried_before := tried;
            refused := '{{}}';
            refusals := '{{}}';
            {one_by_one}
            BEGIN
                FOR taken IN {remember_refused} LOOP END LOOP;
                IF again THEN
                    FOR taken IN {forget_refused} LOOP END LOOP;
                END IF;
            EXCEPTION WHEN OTHERS THEN
                {words_of_error}
                problems := problems || format('%s: rows that cannot be written are not remembered: %s',
                                               {table_name}, said);
                skipped := skipped || refused::{id_type}[];
            END;
            EXIT WHEN again;
            -- It returns nothing only if there is nothing left to reap.
            again := requeued + failed > 0 OR tried = tried_before
                OR clock_timestamp() > began + {search_sec} * interval '1 second';
        END LOOP;
        IF bad_rows > {most_named_rows} THEN
            problems := problems || format('%s: %s more rows cannot be written',
                {table_name}, to_char(bad_rows - {most_named_rows}, 'FM999,999,999'));
        END IF;
    END IF;
    -- What cannot be recorded undoes nothing that was reaped.
    BEGIN
        INSERT INTO {jobreaper_passes}
               (started_at, duration_ms, trigger, reaper, counts, requeued, failed, held,
                held_reason, silent_until, error)
        VALUES (statement_timestamp(),
                extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000,
                {trigger_sql},
                'sql:' || pg_backend_pid()::text,
                jsonb_build_object({table_name},
                                   jsonb_build_object('requeued', requeued, 'failed', failed)),
                requeued, failed, reason_to_hold IS NOT NULL, reason_to_hold,
                this_call.silent_until,
                nullif(array_to_string(problems, chr(10)), ''));
        IF silent_by > '-infinity' THEN
            INSERT INTO {jobreaper_totals} (name, "table", microseconds)
            VALUES ({scans}, {table_name},
                    extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000);
            INSERT INTO {jobreaper_totals} (name, "table")
            SELECT {clean_scans}, {table_name} WHERE problems = '{{}}';
        END IF;
        INSERT INTO {jobreaper_totals} (name, "table")
        SELECT {held_passes}, '' WHERE reason_to_hold IS NOT NULL
         UNION ALL
        SELECT {common_silences}, '' WHERE this_call.silent_until IS NOT NULL;
    EXCEPTION WHEN OTHERS THEN
        {words_of_error}
        RAISE WARNING 'the pass could not be recorded: % (%)', said, SQLSTATE;
    END;
    BEGIN
        FOR taken IN
            {fold_totals}
        LOOP
        END LOOP;
    EXCEPTION WHEN OTHERS THEN
        {words_of_error}
        RAISE WARNING 'the totals could not be folded: % (%)', said, SQLSTATE;
    END;
END
$body$
