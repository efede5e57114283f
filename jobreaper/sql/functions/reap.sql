-- One batch of a pass over the table, on record as a pass; call it until nothing comes back.
CREATE OR REPLACE FUNCTION {function}(batch int DEFAULT 1000)
RETURNS TABLE (job_id text, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path = {search_path}
AS $body$
#variable_conflict use_column
DECLARE
    server record;
    job record;
    requeued int := 0;
    failed int := 0;
    reason_to_hold text;
BEGIN
    {server_start}
    INTO server;
    IF server.had_passes AND server.up_sec < {grace_sec} THEN
        reason_to_hold := format('PostgreSQL started %s s ago; workers have until %s s after the '
                                 'start to beat again (RECOVERY_GRACE_SEC)',
                                 round(server.up_sec::numeric), {grace_in_words});
    ELSE
        FOR job IN
            {statement}
        LOOP
            {function}.job_id := {reaped_key};
            {function}.outcome := CASE WHEN job.fail_code IS NULL THEN 'requeued' ELSE 'failed' END;
            requeued := requeued + (job.fail_code IS NULL)::int;
            failed := failed + (job.fail_code IS NOT NULL)::int;
            RETURN NEXT;
        END LOOP;
    END IF;
    INSERT INTO jobreaper_passes
           (started_at, duration_ms, trigger, reaper, counts, requeued, failed, held, held_reason)
    VALUES (statement_timestamp(),
            extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000,
            {trigger_sql},
            'sql:' || pg_backend_pid(),
            jsonb_build_object({table_name},
                               jsonb_build_object('requeued', requeued, 'failed', failed)),
            requeued, failed, reason_to_hold IS NOT NULL, reason_to_hold);
    IF reason_to_hold IS NULL THEN
        INSERT INTO jobreaper_totals (name, "table", microseconds)
        VALUES ({scans}, {table_name},
                extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000),
               ({clean_scans}, {table_name}, 0);
    ELSE
        INSERT INTO jobreaper_totals (name, "table") VALUES ({held_passes}, '');
    END IF;
    FOR job IN
        {fold_totals}
    LOOP
    END LOOP;
END
$body$
