-- Candidates tried one by one, and what is noted of each.

-- name: one_by_one
-- Each candidate is tried alone, so that one that cannot be written does not stop the others.
FOR candidate IN
    {candidates}
LOOP
    BEGIN
        {statement_for_one}
        INTO taken;
        {note_taken}
    -- OTHERS does not catch a failed ASSERT in a trigger.
    EXCEPTION WHEN OTHERS OR assert_failure THEN
        IF {is_no_rows_fault} THEN
            RAISE;
        END IF;
        {words_of_error}
        {note_refused}
    END;
    EXIT WHEN clock_timestamp() > began + {search_sec} * interval '1 second';
END LOOP;


-- name: note_taken
-- A check that runs only at the COMMIT would undo all of them. In a caller's transaction, it is not
-- known what else would be checked.
IF NOT %(nested)s THEN
    SET CONSTRAINTS ALL IMMEDIATE;
END IF;
tried := array_append(tried, jsonb_build_object('key', candidate.id::text, 'id', candidate.id)
                             || CASE WHEN FOUND THEN to_jsonb(taken) ELSE '{{}}' END);


-- name: note_refused
tried := array_append(tried, jsonb_build_object('key', candidate.id::text, 'id', candidate.id,
                                                'refusal', said));


-- name: deferred_checks
-- The constraint triggers of the table and of its events that would refuse a row only at the COMMIT,
-- which would undo everything. Not the foreign keys, to whose columns nothing is written.
(SELECT string_agg(format('%I.%I', space.nspname, "check".conname), ', ')
   FROM pg_constraint AS "check"
   JOIN pg_namespace AS space ON space.oid = "check".connamespace
  WHERE "check".conrelid IN ({table_in_text}::regclass, {events_in_text}::regclass)
    AND "check".contype = 't'
    AND "check".condeferred)


-- name: check_now
-- Check what was written by one try, and no more than that.
IF deferred IS NOT NULL THEN
    EXECUTE 'SET CONSTRAINTS ' || deferred || ' IMMEDIATE';
    EXECUTE 'SET CONSTRAINTS ' || deferred || ' DEFERRED';
END IF;


-- name: note_claimed
has_more := true;
tried := array_append(tried, candidate.id::{id_type});
IF FOUND THEN
    {check_now}
    RETURN NEXT taken;
    most := most - 1;
END IF;


-- name: note_not_claimed
has_more := true;
tried := array_append(tried, candidate.id::{id_type});
refused := array_append(refused, candidate.id::text);
refusals := array_append(refusals, said);
RAISE WARNING 'cannot claim job %: % (%)', candidate.id, said, SQLSTATE;


-- name: note_reaped
tried := tried + 1;
IF FOUND THEN
    {check_now}
    {reaped_row}
    written := array_append(written, candidate.id::text);
ELSE
    skipped := array_append(skipped, candidate.id::{id_type});
    locked := array_append(locked, candidate.id::text);
END IF;


-- name: note_not_reaped
tried := tried + 1;
refused := array_append(refused, candidate.id::text);
refusals := array_append(refusals, said);
bad_rows := bad_rows + 1;
IF bad_rows <= {most_named_rows} THEN
    problems := problems || format('%s: job %s: %s', {table_name}, candidate.id, said);
    RAISE WARNING 'cannot reap job %: % (%)', candidate.id, said, SQLSTATE;
END IF;


-- name: words_of_error
-- What may be told of an error: its first line, if PostgreSQL quotes no values in it.
said := left(CASE WHEN SQLERRM ~ {suppressed} THEN substring(SQLERRM FROM {suppressed})
                  WHEN (left(SQLSTATE, 2) IN ({classes_with_values})
                        OR SQLSTATE IN ({states_with_values}))
                       AND SQLSTATE NOT IN ({states_without_values})
                  THEN 'SQLSTATE ' || SQLSTATE
                  ELSE split_part(SQLERRM, chr(10), 1) END, {longest_line});
