-- One batch of a pass over the table, on record as a pass; call it until nothing comes back.
CREATE OR REPLACE FUNCTION {function}(batch int DEFAULT 1000)
RETURNS TABLE (job_id text, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path = {search_path}
SET TimeZone = {time_zone}
AS $body$
#variable_conflict use_column
<<this_call>>
DECLARE
    server record;
    -- Not named as the statements name a row: a column that is missing would be looked for in it.
    taken record;
    candidate record;
    began timestamptz := clock_timestamp();
    tried {id_type}[] := '{{}}';
    tried_before int;
    bad_rows int := 0;
    problems text[] := '{{}}';
    requeued int := 0;
    failed int := 0;
    reason_to_hold text;
BEGIN
    {server_back}
    INTO server;
    IF server.up_sec < {grace_sec} THEN
        reason_to_hold := format('PostgreSQL came up %s s ago; workers have until %s s after that '
                                 'to beat again (RECOVERY_GRACE_SEC)',
                                 round(server.up_sec::numeric), {grace_in_words});
    ELSE
        BEGIN
            FOR taken IN
                {statement}
            LOOP
                {reaped_row}
            END LOOP;
        -- OTHERS leaves out what an ASSERT of a trigger raises.
        EXCEPTION WHEN OTHERS OR assert_failure THEN
            IF SQLSTATE IN ({transient_sqlstates}) THEN
                RAISE;
            END IF;
            -- A table that refuses even this is itself at fault.
            FOR taken IN
                {statement_for_none}
            LOOP
            END LOOP;
            -- Some row cannot be written. Taken one at a time it stops no other.
            LOOP
                tried_before := cardinality(tried);
                FOR candidate IN
                    {candidates}
                LOOP
                    EXIT WHEN clock_timestamp() > began + {search_time};
                    tried := array_append(tried, candidate.id::{id_type});
                    BEGIN
                        FOR taken IN
                            {statement_for_one}
                        LOOP
                            {reaped_row}
                        END LOOP;
                    EXCEPTION WHEN OTHERS OR assert_failure THEN
                        IF SQLSTATE IN ({transient_sqlstates}) THEN
                            RAISE;
                        END IF;
                        bad_rows := bad_rows + 1;
                        IF bad_rows <= {most_named_rows} THEN
                            problems := problems
                                || format('%s: job %s: %s', {table_name}, candidate.id, SQLERRM);
                            RAISE WARNING 'cannot reap job %: % (%)',
                                candidate.id, SQLERRM, SQLSTATE;
                        END IF;
                    END;
                END LOOP;
                EXIT WHEN requeued + failed > 0 OR cardinality(tried) = tried_before;
            END LOOP;
            IF bad_rows > {most_named_rows} THEN
                problems := problems || format('%s: %s more rows cannot be written',
                    {table_name}, to_char(bad_rows - {most_named_rows}, 'FM999,999,999'));
            END IF;
        END;
    END IF;
    INSERT INTO jobreaper_passes
           (started_at, duration_ms, trigger, reaper, counts, requeued, failed, held, held_reason,
            error)
    VALUES (statement_timestamp(),
            extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000,
            {trigger_sql},
            'sql:' || pg_backend_pid(),
            jsonb_build_object({table_name},
                               jsonb_build_object('requeued', requeued, 'failed', failed)),
            requeued, failed, reason_to_hold IS NOT NULL, reason_to_hold,
            nullif(array_to_string(problems, chr(10)), ''));
    IF reason_to_hold IS NULL THEN
        INSERT INTO jobreaper_totals (name, "table", microseconds)
        VALUES ({scans}, {table_name},
                extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000);
        INSERT INTO jobreaper_totals (name, "table")
        SELECT {clean_scans}, {table_name} WHERE problems = '{{}}';
    ELSE
        INSERT INTO jobreaper_totals (name, "table") VALUES ({held_passes}, '');
    END IF;
    FOR taken IN
        {fold_totals}
    LOOP
    END LOOP;
END
$body$
