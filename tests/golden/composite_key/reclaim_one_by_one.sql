-- The body of a DO: the candidates of a verb are tried one by one. The results are in a cursor,
-- because a DO does not return a result.
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    candidate record;
    taken record;
    said text;
    tried jsonb[] := '{}';
    answer refcursor := 'jobreaper_tried';
BEGIN
    -- Each candidate is tried alone, so that one that cannot be written does not stop the others.
    FOR candidate IN
        -- Dry run of a pass: its verdicts, nothing locked and nothing written.
        WITH
        stale AS MATERIALIZED (
            SELECT job."at" AS "key_0", job."n" AS "key_1",
                   jsonb_build_array(job."at", job."n")::text AS job_id,
                   NULL::text AS stage,
                   NULL::text AS locked_by,
                   -- A job that failed and was requeued by hand starts from scratch.
                   (SELECT 1 + count(*)::int
                      FROM job_events AS event
                     WHERE event.job_id = jsonb_build_array(job."at", job."n")::text
                       AND event."table" = 'chores'
                       AND event.type = 'reaper:requeued'
                       AND event.id > coalesce((SELECT max(ended.id)
                                                  FROM job_events AS ended
                                                 WHERE ended.job_id = jsonb_build_array(job."at", job."n")::text
                                                   AND ended."table" = 'chores'
                                                   AND ended.type = 'reaper:failed(timeout)'), 0)) AS attempt_count,
                   coalesce(NULL::int, 3) AS max_attempts,
                   job."claimed_at"::timestamptz AS claimed_at,
                   GREATEST(job."claimed_at") AS last_seen_at,
                   limits.ttl
              FROM "chores" AS job
              JOIN (SELECT make_interval(secs => 60) AS ttl) AS limits ON true
             WHERE job."status" = 'processing'
               AND GREATEST(job."claimed_at") < statement_timestamp() - limits.ttl
               AND GREATEST(job."claimed_at") <= %(silent_by)s::timestamptz
               AND CASE WHEN %(again)s
                        THEN EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                      WHERE refused."table" = 'chores'
                                        AND refused.verb = 'reap'
                                        AND refused.key = jsonb_build_array(job."at", job."n")::text::text
                                        AND refused.next_try_at <= statement_timestamp())
                        ELSE jsonb_build_array(job."at", job."n")::text <> ALL (%(skip)s::text[])
                             AND (NOT (SELECT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                                       WHERE refused."table" = 'chores'
                                                         AND refused.verb = 'reap'))
                                  OR NOT EXISTS (SELECT FROM jobreaper_refused_rows AS refused
                                                  WHERE refused."table" = 'chores'
                                                    AND refused.verb = 'reap'
                                                    AND refused.key = jsonb_build_array(job."at", job."n")::text::text)) END
             ORDER BY GREATEST(job."claimed_at")
             LIMIT %(batch)s
        ),
        verdict AS MATERIALIZED (
            SELECT stale.*,
                   stale.job_id AS id,
                   'lease_expired'::text AS reason,
                   0 AS lease_epoch,
                   decided.requeues,
                   CASE WHEN NOT decided.requeues THEN 'timeout' END AS fail_code,
                   statement_timestamp() AS run_again_at,
                   CASE WHEN isfinite(stale.last_seen_at) THEN
                       round(extract(epoch FROM statement_timestamp() - stale.last_seen_at - stale.ttl)
                             * 1000)::bigint END AS overdue_ms,
                   'RECLAIMED_TTL' || ': Exceeded TTL (' || allowed.in_words || ')'
                       || CASE WHEN stale.attempt_count >= stale.max_attempts
                               THEN ' - Max attempts reached' ELSE '' END AS note
              FROM stale
             CROSS JOIN LATERAL (
                   SELECT 'requeue' <> 'fail' AND stale.attempt_count < stale.max_attempts AS requeues
                   ) AS decided
             CROSS JOIN LATERAL (
                   SELECT extract(epoch FROM stale.ttl) AS sec
                   ) AS allowance
             CROSS JOIN LATERAL (
                   SELECT CASE WHEN allowance.sec >= 60 AND mod(allowance.sec, 60) = 0
                               THEN trunc(allowance.sec / 60)::text || ' min'
                               ELSE allowance.sec::float8::text || ' s' END AS in_words
                   ) AS allowed
        )
        SELECT id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
               CASE WHEN requeues THEN
                   round(extract(epoch FROM run_again_at - statement_timestamp()) * 1000)::bigint
               END AS run_again_in_ms
          FROM verdict
         ORDER BY last_seen_at
    LOOP
        BEGIN
            -- Reclaim: one batch of running jobs of a table without leases, whose last sign of life is older
            -- than their type allows, goes back to the queue, or fails if the attempts are used up.
            --
            -- A type without a time to live is never reclaimed.
            WITH
            stale AS MATERIALIZED (
                SELECT job."at" AS "key_0", job."n" AS "key_1",
                       jsonb_build_array(job."at", job."n")::text AS job_id,
                       NULL::text AS stage,
                       NULL::text AS locked_by,
                       -- A job that failed and was requeued by hand starts from scratch.
                       (SELECT 1 + count(*)::int
                          FROM job_events AS event
                         WHERE event.job_id = jsonb_build_array(job."at", job."n")::text
                           AND event."table" = 'chores'
                           AND event.type = 'reaper:requeued'
                           AND event.id > coalesce((SELECT max(ended.id)
                                                      FROM job_events AS ended
                                                     WHERE ended.job_id = jsonb_build_array(job."at", job."n")::text
                                                       AND ended."table" = 'chores'
                                                       AND ended.type = 'reaper:failed(timeout)'), 0)) AS attempt_count,
                       coalesce(NULL::int, 3) AS max_attempts,
                       job."claimed_at"::timestamptz AS claimed_at,
                       GREATEST(job."claimed_at") AS last_seen_at,
                       limits.ttl
                  FROM (SELECT * FROM "chores" AS job WHERE job."at" = (candidate.id::jsonb ->> 0)::timestamp with time zone AND job."n" = (candidate.id::jsonb ->> 1)::integer OFFSET 0) AS job
                  JOIN (SELECT make_interval(secs => 60) AS ttl) AS limits ON true
                 WHERE job."status" = 'processing'
                   AND GREATEST(job."claimed_at") < statement_timestamp() - limits.ttl
                   AND GREATEST(job."claimed_at") <= %(silent_by)s::timestamptz
                   AND true
                 ORDER BY GREATEST(job."claimed_at")
                 LIMIT %(batch)s
                   FOR NO KEY UPDATE OF job SKIP LOCKED
            ),
            verdict AS MATERIALIZED (
                SELECT stale.*,
                       stale.job_id AS id,
                       'lease_expired'::text AS reason,
                       0 AS lease_epoch,
                       decided.requeues,
                       CASE WHEN NOT decided.requeues THEN 'timeout' END AS fail_code,
                       statement_timestamp() AS run_again_at,
                       CASE WHEN isfinite(stale.last_seen_at) THEN
                           round(extract(epoch FROM statement_timestamp() - stale.last_seen_at - stale.ttl)
                                 * 1000)::bigint END AS overdue_ms,
                       'RECLAIMED_TTL' || ': Exceeded TTL (' || allowed.in_words || ')'
                           || CASE WHEN stale.attempt_count >= stale.max_attempts
                                   THEN ' - Max attempts reached' ELSE '' END AS note
                  FROM stale
                 CROSS JOIN LATERAL (
                       SELECT 'requeue' <> 'fail' AND stale.attempt_count < stale.max_attempts AS requeues
                       ) AS decided
                 CROSS JOIN LATERAL (
                       SELECT extract(epoch FROM stale.ttl) AS sec
                       ) AS allowance
                 CROSS JOIN LATERAL (
                       SELECT CASE WHEN allowance.sec >= 60 AND mod(allowance.sec, 60) = 0
                                   THEN trunc(allowance.sec / 60)::text || ' min'
                                   ELSE allowance.sec::float8::text || ' s' END AS in_words
                       ) AS allowed
            ),
            reaped AS (
                UPDATE "chores" AS job
                   SET
                       "claimed_at" = CASE WHEN verdict.requeues THEN NULL ELSE job."claimed_at" END,
                       "status" = -- The last branch is never used. It gives the words the type of the column, which may be an enum.
                                  CASE WHEN verdict.requeues THEN 'queued'
                                       WHEN NOT verdict.requeues THEN 'failed'
                                       ELSE job."status" END
                  FROM verdict
                 WHERE job."at" = verdict."key_0" AND job."n" = verdict."key_1"
                RETURNING verdict.*
            ),
            happened (job_id, type, details) AS (
                SELECT reaped.job_id,
                       CASE WHEN reaped.requeues THEN 'reaper:requeued' ELSE 'reaper:failed(timeout)' END,
                       jsonb_build_object(
                           'reason', reaped.reason,
                           'locked_by', reaped.locked_by,
                           'stage', reaped.stage,
                           'attempt', reaped.attempt_count,
                           'claimed_at', to_char(reaped.claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                           'last_heartbeat_at', to_char(reaped.last_seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                           'ttl_sec', extract(epoch FROM reaped.ttl)::float8,
                           'overdue_ms', reaped.overdue_ms,
                           'note', reaped.note,
                           'reaper', %(reaper)s::text)
                  FROM reaped
            ),
            event (job_id, data) AS (
                SELECT happened.job_id,
                       jsonb_build_object(
                           'type', happened.type,
                           'table', 'chores'::text,
                           'details', happened.details,
                           -- In a query of its own, it is written once for all events.
                           'at', (SELECT to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
                  FROM happened
            ),
            -- A trigger may keep an event out. Nothing reads here whether it did: the change of the job counts.
            recorded AS (
                INSERT INTO job_events (job_id, data)
                SELECT job_id, data FROM event
            ),
            counted AS (
                INSERT INTO jobreaper_totals (name, "table", stage, count, microseconds)
                SELECT CASE WHEN requeues THEN 'requeues' ELSE 'failures' END, 'chores',
                       left(coalesce(stage, ''), 255), count(*),
                       LEAST(coalesce(sum(overdue_ms), 0) * 1000, 9223372036854775807)
                  FROM reaped
                 GROUP BY requeues, left(coalesce(stage, ''), 255)
                 UNION ALL
                SELECT 'taken_back:' || reason, 'chores', '', count(*), 0
                  FROM reaped
                 GROUP BY reason
            )
            SELECT id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
                   CASE WHEN requeues THEN
                       round(extract(epoch FROM run_again_at - statement_timestamp()) * 1000)::bigint
                   END AS run_again_in_ms
              FROM reaped
             WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
                   -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
                   -- an error, as of any row that cannot be written.
                   (SELECT CASE WHEN count(*) = (SELECT count(*) FROM reaped) THEN true
                                ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM reaped))::text
                                      || ' row(s)')::boolean END
                      FROM verdict)
            INTO taken;
            -- A check that runs only at the COMMIT would undo all of them. In a caller's transaction, it is not
            -- known what else would be checked.
            IF NOT %(nested)s THEN
                SET CONSTRAINTS ALL IMMEDIATE;
            END IF;
            tried := array_append(tried, jsonb_build_object('key', candidate.id::text, 'id', candidate.id)
                                         || CASE WHEN FOUND THEN to_jsonb(taken) ELSE '{}' END);
        -- OTHERS does not catch a failed ASSERT in a trigger.
        EXCEPTION WHEN OTHERS OR assert_failure THEN
            IF SQLSTATE IN ('25006', '25P03', '25P04', '40001', '40P01', '53300', '55P03', '57P01', '57P02', '57P03', '57P05') OR left(SQLSTATE, 2) IN ('53', '57', '58') THEN
                RAISE;
            END IF;
            -- What may be told of an error: its first line, if PostgreSQL quotes no values in it.
            said := left(CASE WHEN SQLERRM ~ 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]' THEN substring(SQLERRM FROM 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]')
                              WHEN (left(SQLSTATE, 2) IN ('22', '2F', '38', '39', 'HV')
                                    OR SQLSTATE IN ('42601', '42602', '42622'))
                                   AND SQLSTATE NOT IN ('22001', '22012')
                              THEN 'SQLSTATE ' || SQLSTATE
                              ELSE split_part(SQLERRM, chr(10), 1) END, 1000);
            tried := array_append(tried, jsonb_build_object('key', candidate.id::text, 'id', candidate.id,
                                                            'refusal', said));
        END;
        EXIT WHEN clock_timestamp() > began + %(search_sec)s * interval '1 second';
    END LOOP;
    OPEN answer FOR
        SELECT one.*, (one.id::jsonb ->> 0)::timestamp with time zone AS "read_0", (one.id::jsonb ->> 1)::integer AS "read_1"
          FROM unnest(tried) WITH ORDINALITY AS each (try, place)
         CROSS JOIN LATERAL jsonb_to_record(each.try) AS one (
               key text, refusal text,
               id text, stage text, reason text, fail_code text, locked_by text,
               attempt_count bigint, lease_epoch bigint, overdue_ms bigint, run_again_in_ms bigint)
         ORDER BY each.place;
END
