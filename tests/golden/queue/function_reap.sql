-- One batch of a pass over the table, which is recorded as a pass. Call it until it returns
-- nothing.
CREATE OR REPLACE FUNCTION "public"."jobreaper_jobs_reap"(batch int DEFAULT 1000)
RETURNS TABLE (job_id text, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path = "pg_catalog", "pg_temp"
SET TimeZone = 'UTC'
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
    deferred text := -- The constraint triggers of the table and of its events that would refuse a row only at the COMMIT,
                     -- which would undo everything. Not the foreign keys, to whose columns nothing is written.
                     (SELECT string_agg(format('%I.%I', space.nspname, "check".conname), ', ')
                        FROM pg_constraint AS "check"
                        JOIN pg_namespace AS space ON space.oid = "check".connamespace
                       WHERE "check".conrelid IN ('"public"."jobreaper_jobs"'::regclass, '"public"."job_events"'::regclass)
                         AND "check".contype = 't'
                         AND "check".condeferred);
    -- A check at the COMMIT would undo the whole batch: then each row is tried alone.
    most int := CASE WHEN deferred IS NULL THEN batch ELSE 0 END;
    -- Rows that cannot be written: whether remembered ones are tried, and the result.
    again boolean;
    tried int := 0;
    tried_before int;
    skipped uuid[] := '{}';
    written text[] := '{}';
    locked text[] := '{}';
    refused text[];
    refusals text[];
    bad_rows int := 0;
    problems text[] := '{}';
    requeued int := 0;
    failed int := 0;
    reason_to_hold text;
    -- Leases of workers that fell silent by then are taken.
    silent_by timestamptz := 'infinity';
    silent_until timestamptz;
BEGIN
    -- How long the server has been available since its last outage; NULL if no pass had run before. A
    -- crash of one session restarts the server within its process and resets all its statistics. A
    -- standby that takes over keeps the time of the last transaction that it replayed. Both may have
    -- started long before the server answered again, so the time runs from the first pass since then,
    -- or from an hour later, because a pass that cannot be recorded would hold all others. A start in
    -- the future was recorded before somebody set the clock back.
    WITH crash (at) AS (
        -- Somebody may reset one of them, but hardly all.
        SELECT least((SELECT stats_reset FROM pg_stat_archiver),
                     (SELECT stats_reset FROM pg_stat_bgwriter),
                     (SELECT stats_reset FROM pg_stat_wal))
    ),
    away (at) AS (
        SELECT at FROM crash WHERE at > pg_postmaster_start_time()
         UNION ALL
        SELECT pg_last_xact_replay_timestamp()
    ),
    back (away_at, at) AS (
        SELECT pg_postmaster_start_time(), pg_postmaster_start_time()
         UNION ALL
        SELECT at,
               least((SELECT min(started_at) FROM "public"."jobreaper_passes" WHERE started_at > away.at),
                     statement_timestamp(),
                     at + interval '1 hour')
          FROM away
    )
    SELECT abs(extract(epoch FROM statement_timestamp() - max(at)))::float8 AS up_sec
      FROM back
     WHERE EXISTS (SELECT FROM "public"."jobreaper_passes" WHERE started_at < away_at)
    INTO server;
    IF server.up_sec < 30.0 THEN
        reason_to_hold := format('PostgreSQL came up %s s ago; workers have until %s s after that '
                                 'to beat again (RECOVERY_GRACE_SEC)',
                                 round(server.up_sec::numeric), '30');
        silent_by := '-infinity';
    END IF;
    -- Nothing that misses hidden rows raises an error.
    FOR taken IN
        SELECT format('row-level security hides rows of %s from the role ''%s'': give the role BYPASSRLS or a policy that shows it all rows, see Rights in docs/queue.md', 'jobreaper_jobs', current_user) AS words
          FROM pg_class AS class
         WHERE class.oid = '"public"."jobreaper_jobs"'::regclass
           AND -- Whether row-level security may hide rows of a table from this session's role. A policy that shows all
               -- of them hides none, unless a restrictive one hides what it shows.
               row_security_active(class.oid)
               AND NOT EXISTS (SELECT FROM pg_policy
                                WHERE polrelid = class.oid
                                  AND polpermissive
                                  AND polcmd = '*'
                                  AND pg_get_expr(polqual, polrelid) = 'true'
                                  AND EXISTS (SELECT FROM unnest(polroles) AS role
                                               WHERE role = 0 OR pg_has_role(role, 'USAGE'))
                                  AND NOT EXISTS (
                                          SELECT FROM pg_policy AS other
                                           WHERE other.polrelid = class.oid
                                             AND NOT other.polpermissive
                                             AND other.polcmd IN ('*', 'r', 'w')
                                             AND pg_get_expr(other.polqual, other.polrelid) <> 'true'
                                             AND EXISTS (SELECT FROM unnest(other.polroles) AS role
                                                          WHERE role = 0 OR pg_has_role(role, 'USAGE'))))
    LOOP
        problems := problems || taken.words;
        RAISE WARNING '%', taken.words;
    END LOOP;
    -- Inside a function that runs a pass: only if there is anything to reap.
    IF silent_by = 'infinity' AND EXISTS (
        -- Dry run of a pass: its verdicts, nothing locked and nothing written.
        WITH
        -- The jobs whose lease ran out, oldest first, and the verdict on each.
        --
        -- With a limit that the planner cannot see, it reads the index in order. With a limit that it sees,
        -- it may read and sort every expired job for each batch.
        policies AS MATERIALIZED (
            -- One row per stage; the default policy has the stage ''.
            SELECT policy.stage,
                   policy.lease_sec,
                   policy.sla_factor,
                   policy.max_runtime_sec * interval '1 second' AS max_runtime,
                   policy.stall_after_sec * interval '1 second' AS stall_after,
                   policy.backoff_ms,
                   policy.on_expiry,
                   policy.max_reaps,
                   coalesce(policy.ttl_sec, NULL::float8) * interval '1 second' AS ttl
              FROM "public"."jobreaper_policies"() AS policy
        ),
        expired AS MATERIALIZED (
            SELECT job."id" AS id,
                   job."stage" AS stage,
                   job."locked_by" AS locked_by,
                   coalesce(job."attempt_count"::int, 0) AS attempt_count,
                   coalesce(job."max_attempts"::int, 3) AS max_attempts,
                   coalesce(job."reap_count", 0) AS reap_count,
                   coalesce(job."lease_epoch", 0) AS lease_epoch,
                   job."claimed_at" AS claimed_at,
                   job."last_heartbeat_at" AS last_heartbeat_at,
                   job."lease_expires_at" AS lease_expires_at,
                   job."deadline_at" AS deadline_at,
                   job."progress" AS progress,
                   job."progress_at" AS progress_at,
                   coalesce(job."stalls_at" BETWEEN job."claimed_at" AND job."lease_expires_at"
                            AND 2 * extract(epoch FROM job."last_heartbeat_at")
                                >= extract(epoch FROM job."stalls_at")
                                   + extract(epoch FROM GREATEST(job."progress_at", job."claimed_at")), false) AS is_stalled,
                   job."lease_expires_at" AS ended_at,
                   NULL::text AS cause,
                   NULL::text AS fail_reason
              FROM "public"."jobreaper_jobs" AS job
             WHERE job."status" = 'processing'
               AND job."lease_expires_at" < statement_timestamp()
               AND (job."next_earliest_run_at" IS NULL
                    OR job."next_earliest_run_at" <= statement_timestamp()
                    OR coalesce(job."attempt_count"::int, 0) >= coalesce(job."max_attempts"::int, 3))
               AND coalesce(GREATEST(job."last_heartbeat_at", job."claimed_at"), '-infinity')
                   <= this_call.silent_by::timestamptz
               AND job."id" <> ALL (this_call.skipped::uuid[])
                   AND (NOT (SELECT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                             WHERE refused."table" = 'jobreaper_jobs'
                                               AND refused.verb = 'reap'))
                        OR NOT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                        WHERE refused."table" = 'jobreaper_jobs'
                                          AND refused.verb = 'reap'
                                          AND refused.key = job."id"::text))
             ORDER BY job."lease_expires_at"
             LIMIT (SELECT 1::bigint)
        ),
        -- Running without a lease, from workers older than leases: judged by the last sign of life, and
        -- only if there is a time to live. GREATEST, not COALESCE: an old heartbeat, kept from an earlier
        -- attempt, must not make a new attempt look dead.
        silent AS MATERIALIZED (
            SELECT job."id" AS id,
                   job."stage" AS stage,
                   job."locked_by" AS locked_by,
                   coalesce(job."attempt_count"::int, 0) AS attempt_count,
                   coalesce(job."max_attempts"::int, 3) AS max_attempts,
                   coalesce(job."reap_count", 0) AS reap_count,
                   coalesce(job."lease_epoch", 0) AS lease_epoch,
                   job."claimed_at" AS claimed_at,
                   job."last_heartbeat_at" AS last_heartbeat_at,
                   job."lease_expires_at" AS lease_expires_at,
                   job."deadline_at" AS deadline_at,
                   job."progress" AS progress,
                   job."progress_at" AS progress_at,
                   coalesce(job."stalls_at" BETWEEN job."claimed_at" AND job."lease_expires_at"
                            AND 2 * extract(epoch FROM job."last_heartbeat_at")
                                >= extract(epoch FROM job."stalls_at")
                                   + extract(epoch FROM GREATEST(job."progress_at", job."claimed_at")), false) AS is_stalled,
                   GREATEST(job."last_heartbeat_at", job."claimed_at") + policy.ttl AS ended_at,
                   NULL::text AS cause,
                   NULL::text AS fail_reason
              FROM "public"."jobreaper_jobs" AS job
              JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
             WHERE (SELECT bool_or(ttl IS NOT NULL) FROM policies)
               AND job."status" = 'processing'
               AND job."lease_expires_at" IS NULL
               AND GREATEST(job."last_heartbeat_at", job."claimed_at") + policy.ttl < statement_timestamp()
               AND (job."next_earliest_run_at" IS NULL
                    OR job."next_earliest_run_at" <= statement_timestamp()
                    OR coalesce(job."attempt_count"::int, 0) >= coalesce(job."max_attempts"::int, 3))
               AND coalesce(GREATEST(job."last_heartbeat_at", job."claimed_at"), '-infinity')
                   <= this_call.silent_by::timestamptz
               AND job."id" <> ALL (this_call.skipped::uuid[])
                   AND (NOT (SELECT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                             WHERE refused."table" = 'jobreaper_jobs'
                                               AND refused.verb = 'reap'))
                        OR NOT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                        WHERE refused."table" = 'jobreaper_jobs'
                                          AND refused.verb = 'reap'
                                          AND refused.key = job."id"::text))
             LIMIT 1 - (SELECT count(*) FROM expired)
        ),
        lost AS (
            SELECT * FROM expired UNION ALL SELECT * FROM silent
        ),
        -- The verdict on each lost job. After a worker that is known to be dead, there is no wait the first
        -- time; the second time, the job may be the reason. It is not if the worker had been told to stop: that
        -- costs no attempt, and no wait either.
        verdict AS MATERIALIZED (
            SELECT job.*,
                   why.reason,
                   decided.fail_code,
                   decided.fail_code IS NULL AS requeues,
                   (decided.fail_code IS NULL
                    AND (budget.counts_reaps OR why.reason = 'worker_stopped'))::int
                       AS attempts_given_back,
                   (why.reason <> 'worker_stopped')::int AS reaps,
                   CASE WHEN why.reason = 'worker_stopped'
                          OR why.reason = 'worker_lost' AND job.reap_count = 0
                        THEN statement_timestamp()
                        ELSE statement_timestamp() + policy.backoff_ms[LEAST(GREATEST(job.attempt_count, 1), cardinality(policy.backoff_ms))]
                                                         * interval '1 millisecond' END AS run_again_at,
                   -- '-infinity', which a person may write in psql, has no distance from now.
                   CASE WHEN isfinite(job.ended_at) THEN
                       round(extract(epoch FROM statement_timestamp() - job.ended_at) * 1000)::bigint
                       END AS overdue_ms
              FROM lost AS job
              JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
             CROSS JOIN LATERAL (
                   SELECT CASE WHEN job.cause IS NOT NULL THEN job.cause
                               WHEN job.deadline_at <= job.lease_expires_at THEN 'deadline'
                               WHEN job.is_stalled THEN 'stalled'
                               ELSE 'lease_expired' END AS reason
                   ) AS why
             CROSS JOIN LATERAL (
                   SELECT policy.max_reaps IS NOT NULL AND why.reason NOT IN ('deadline', 'stalled')
                              AS counts_reaps,
                          CASE why.reason WHEN 'lease_expired' THEN 'timeout'
                                          WHEN 'worker_stopped' THEN 'worker_lost'
                                          ELSE why.reason END AS code
                   ) AS budget
             CROSS JOIN LATERAL (
                   SELECT CASE
                          WHEN policy.on_expiry = 'fail' THEN budget.code
                          WHEN why.reason = 'worker_stopped' THEN NULL
                          WHEN budget.counts_reaps THEN
                               CASE WHEN job.reap_count >= policy.max_reaps - 1 THEN 'poison' END
                          WHEN job.attempt_count >= job.max_attempts THEN budget.code
                          END AS fail_code
                   ) AS decided
        )
        SELECT id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
               CASE WHEN requeues THEN
                   round(extract(epoch FROM run_again_at - statement_timestamp()) * 1000)::bigint
               END AS run_again_in_ms
          FROM verdict
         ORDER BY ended_at
    ) THEN
        -- Silence: which leases a pass may take, those of workers that fell silent by `silent_by`; if not all,
        -- why; and up to when workers fell silent together, if that is seen for the first time.
        --
        -- Workers that were silent when a common silence was first seen have one grace from then on, and not
        -- another one after it. So however often workers fall silent, each lease is taken in the end. Those
        -- that were silent when the server came up have had theirs since then.
        WITH
        up (at) AS (
            SELECT CASE WHEN this_call.server.up_sec::float8 >= 30.0::float8
                        THEN statement_timestamp() - make_interval(secs => this_call.server.up_sec::float8) END
        ),
        grace (known_until, over_until, seen_at) AS (
            SELECT GREATEST(max(silent_until), (SELECT at FROM up), '-infinity'),
                   GREATEST(max(silent_until) FILTER (WHERE NOT is_running),
                            (SELECT at FROM up),
                            '-infinity'),
                   max(seen_at) FILTER (WHERE is_running)
              FROM (SELECT silent_until,
                           ended.at AS seen_at,
                           ended.at > statement_timestamp() - make_interval(secs => 30.0::float8)
                               AS is_running
                      FROM "public"."jobreaper_passes"
                     CROSS JOIN LATERAL (
                           SELECT started_at + duration_ms * interval '1 millisecond' AS at
                           ) AS ended
                     WHERE silent_until IS NOT NULL
                       AND started_at > statement_timestamp() - 2 * -- What ended before has no part in what happens now, whatever could be recorded of it.
                                                                    make_interval(secs => 30.0::float8 + 3600)) AS earlier
        ),
        seen (worker, seen_at, pace_sec, is_due) AS (
            -- When each worker was last seen, by the leases that it holds, and within how many seconds it should
            -- have been seen again: half a lease, or one and a half heartbeat intervals. Seconds, because they may
            -- be infinite. A deadline ends the lease of a healthy worker, and so does a job that has stalled.
            SELECT job."locked_by"::text AS worker,
                   seen.at AS seen_at,
                   LEAST((extract(epoch FROM job."lease_expires_at"::timestamptz)
                          - extract(epoch FROM seen.at)) / 2,
                         1.5 * 15.0::float8::numeric) AS pace_sec,
                   job."lease_expires_at" < statement_timestamp()
                   AND job."lease_expires_at" > statement_timestamp() - -- What ended before has no part in what happens now, whatever could be recorded of it.
                                                                        make_interval(secs => 30.0::float8 + 3600) AS is_due
              FROM "public"."jobreaper_jobs" AS job
             CROSS JOIN LATERAL (
                   SELECT GREATEST(job."last_heartbeat_at", job."claimed_at")::timestamptz AS at
                   ) AS seen
             WHERE job."status" = 'processing'
               AND job."lease_expires_at" IS NOT NULL
               AND (job."deadline_at" <= job."lease_expires_at"
                    AND job."lease_expires_at" < statement_timestamp()) IS NOT TRUE
               AND NOT (coalesce(job."stalls_at" BETWEEN job."claimed_at" AND job."lease_expires_at"
                        AND 2 * extract(epoch FROM job."last_heartbeat_at")
                            >= extract(epoch FROM job."stalls_at")
                               + extract(epoch FROM GREATEST(job."progress_at", job."claimed_at")), false)
                        AND job."lease_expires_at" < statement_timestamp())
        ),
        workers AS MATERIALIZED (
            SELECT worker,
                   count(*) AS leases,
                   max(seen_at) AS seen_at,
                   extract(epoch FROM statement_timestamp()) - extract(epoch FROM max(seen_at))
                       > min(pace_sec) AS is_silent,
                   bool_or(is_due) AS is_due
              FROM seen
             GROUP BY worker
        ),
        -- The decision of hold.common_silence().
        span AS (
            SELECT count(*) OVER together AS workers,
                   sum(leases) OVER together AS leases,
                   count(*) FILTER (WHERE is_due) OVER together AS due
              FROM workers
             WHERE is_silent
               AND seen_at > (SELECT known_until FROM grace)
            WINDOW together AS (
                   ORDER BY seen_at
                   RANGE BETWEEN CURRENT ROW
                             AND make_interval(secs => 15.0::float8) FOLLOWING)
        ),
        common AS (
            SELECT span.workers, well.workers AS well
              FROM span
             CROSS JOIN (SELECT count(*) AS workers, coalesce(sum(leases), 0) AS leases
                           FROM workers
                          WHERE NOT is_silent) AS well
             WHERE span.due > 0
               AND span.workers >= 2
               AND span.leases >= 3
               AND (span.workers > well.workers OR span.leases > well.leases)
             ORDER BY span.workers DESC
             LIMIT 1
        ),
        still (workers) AS (
            SELECT count(*)
              FROM workers, grace
             WHERE is_silent
               AND workers.seen_at > grace.over_until
               AND workers.seen_at <= grace.known_until
        )
        SELECT CASE WHEN common.workers > 0 OR still.workers > 0
                    THEN grace.over_until
                    ELSE 'infinity' END::text AS silent_by,
               CASE WHEN common.workers > 0 THEN
                        format('%s of %s workers fell silent within %s s of each other, which was first '
                               'seen now; they have %s s to beat again (RECOVERY_GRACE_SEC)',
                               common.workers, common.workers + common.well,
                               15.0::float8::float8, 30.0::float8::float8)
                    WHEN still.workers > 0 THEN
                        format('%s workers that fell silent together are silent still, which was first '
                               'seen %s s ago; they have until %s s after that to beat again '
                               '(RECOVERY_GRACE_SEC)',
                               still.workers,
                               round(extract(epoch FROM statement_timestamp() - grace.seen_at)),
                               30.0::float8::float8)
                    END AS reason,
               CASE WHEN common.workers > 0
                    THEN (SELECT max(seen_at) FROM workers WHERE is_silent) END AS silent_until
          FROM grace
         CROSS JOIN still
          LEFT JOIN common ON true
        INTO silent_by, reason_to_hold, silent_until;
    END IF;
    IF silent_by > '-infinity' THEN
        LOOP
            BEGIN
                FOR taken IN
                    -- Reap: one batch of jobs with expired leases goes back to the queue, or fails if no attempt is
                    -- left.
                    WITH
                    -- The jobs whose lease ran out, oldest first, and the verdict on each.
                    --
                    -- With a limit that the planner cannot see, it reads the index in order. With a limit that it sees,
                    -- it may read and sort every expired job for each batch.
                    policies AS MATERIALIZED (
                        -- One row per stage; the default policy has the stage ''.
                        SELECT policy.stage,
                               policy.lease_sec,
                               policy.sla_factor,
                               policy.max_runtime_sec * interval '1 second' AS max_runtime,
                               policy.stall_after_sec * interval '1 second' AS stall_after,
                               policy.backoff_ms,
                               policy.on_expiry,
                               policy.max_reaps,
                               coalesce(policy.ttl_sec, NULL::float8) * interval '1 second' AS ttl
                          FROM "public"."jobreaper_policies"() AS policy
                    ),
                    expired AS MATERIALIZED (
                        SELECT job."id" AS id,
                               job."stage" AS stage,
                               job."locked_by" AS locked_by,
                               coalesce(job."attempt_count"::int, 0) AS attempt_count,
                               coalesce(job."max_attempts"::int, 3) AS max_attempts,
                               coalesce(job."reap_count", 0) AS reap_count,
                               coalesce(job."lease_epoch", 0) AS lease_epoch,
                               job."claimed_at" AS claimed_at,
                               job."last_heartbeat_at" AS last_heartbeat_at,
                               job."lease_expires_at" AS lease_expires_at,
                               job."deadline_at" AS deadline_at,
                               job."progress" AS progress,
                               job."progress_at" AS progress_at,
                               coalesce(job."stalls_at" BETWEEN job."claimed_at" AND job."lease_expires_at"
                                        AND 2 * extract(epoch FROM job."last_heartbeat_at")
                                            >= extract(epoch FROM job."stalls_at")
                                               + extract(epoch FROM GREATEST(job."progress_at", job."claimed_at")), false) AS is_stalled,
                               job."lease_expires_at" AS ended_at,
                               NULL::text AS cause,
                               NULL::text AS fail_reason
                          FROM "public"."jobreaper_jobs" AS job
                         WHERE job."status" = 'processing'
                           AND job."lease_expires_at" < statement_timestamp()
                           AND (job."next_earliest_run_at" IS NULL
                                OR job."next_earliest_run_at" <= statement_timestamp()
                                OR coalesce(job."attempt_count"::int, 0) >= coalesce(job."max_attempts"::int, 3))
                           AND coalesce(GREATEST(job."last_heartbeat_at", job."claimed_at"), '-infinity')
                               <= this_call.silent_by::timestamptz
                           AND job."id" <> ALL (this_call.skipped::uuid[])
                               AND (NOT (SELECT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                                         WHERE refused."table" = 'jobreaper_jobs'
                                                           AND refused.verb = 'reap'))
                                    OR NOT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                                    WHERE refused."table" = 'jobreaper_jobs'
                                                      AND refused.verb = 'reap'
                                                      AND refused.key = job."id"::text))
                         ORDER BY job."lease_expires_at"
                         LIMIT (SELECT this_call.most::bigint)
                           FOR NO KEY UPDATE OF job SKIP LOCKED
                    ),
                    -- Running without a lease, from workers older than leases: judged by the last sign of life, and
                    -- only if there is a time to live. GREATEST, not COALESCE: an old heartbeat, kept from an earlier
                    -- attempt, must not make a new attempt look dead.
                    silent AS MATERIALIZED (
                        SELECT job."id" AS id,
                               job."stage" AS stage,
                               job."locked_by" AS locked_by,
                               coalesce(job."attempt_count"::int, 0) AS attempt_count,
                               coalesce(job."max_attempts"::int, 3) AS max_attempts,
                               coalesce(job."reap_count", 0) AS reap_count,
                               coalesce(job."lease_epoch", 0) AS lease_epoch,
                               job."claimed_at" AS claimed_at,
                               job."last_heartbeat_at" AS last_heartbeat_at,
                               job."lease_expires_at" AS lease_expires_at,
                               job."deadline_at" AS deadline_at,
                               job."progress" AS progress,
                               job."progress_at" AS progress_at,
                               coalesce(job."stalls_at" BETWEEN job."claimed_at" AND job."lease_expires_at"
                                        AND 2 * extract(epoch FROM job."last_heartbeat_at")
                                            >= extract(epoch FROM job."stalls_at")
                                               + extract(epoch FROM GREATEST(job."progress_at", job."claimed_at")), false) AS is_stalled,
                               GREATEST(job."last_heartbeat_at", job."claimed_at") + policy.ttl AS ended_at,
                               NULL::text AS cause,
                               NULL::text AS fail_reason
                          FROM "public"."jobreaper_jobs" AS job
                          JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
                         WHERE (SELECT bool_or(ttl IS NOT NULL) FROM policies)
                           AND job."status" = 'processing'
                           AND job."lease_expires_at" IS NULL
                           AND GREATEST(job."last_heartbeat_at", job."claimed_at") + policy.ttl < statement_timestamp()
                           AND (job."next_earliest_run_at" IS NULL
                                OR job."next_earliest_run_at" <= statement_timestamp()
                                OR coalesce(job."attempt_count"::int, 0) >= coalesce(job."max_attempts"::int, 3))
                           AND coalesce(GREATEST(job."last_heartbeat_at", job."claimed_at"), '-infinity')
                               <= this_call.silent_by::timestamptz
                           AND job."id" <> ALL (this_call.skipped::uuid[])
                               AND (NOT (SELECT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                                         WHERE refused."table" = 'jobreaper_jobs'
                                                           AND refused.verb = 'reap'))
                                    OR NOT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                                    WHERE refused."table" = 'jobreaper_jobs'
                                                      AND refused.verb = 'reap'
                                                      AND refused.key = job."id"::text))
                         LIMIT this_call.most - (SELECT count(*) FROM expired)
                           FOR NO KEY UPDATE OF job SKIP LOCKED
                    ),
                    lost AS (
                        SELECT * FROM expired UNION ALL SELECT * FROM silent
                    ),
                    -- The verdict on each lost job. After a worker that is known to be dead, there is no wait the first
                    -- time; the second time, the job may be the reason. It is not if the worker had been told to stop: that
                    -- costs no attempt, and no wait either.
                    verdict AS MATERIALIZED (
                        SELECT job.*,
                               why.reason,
                               decided.fail_code,
                               decided.fail_code IS NULL AS requeues,
                               (decided.fail_code IS NULL
                                AND (budget.counts_reaps OR why.reason = 'worker_stopped'))::int
                                   AS attempts_given_back,
                               (why.reason <> 'worker_stopped')::int AS reaps,
                               CASE WHEN why.reason = 'worker_stopped'
                                      OR why.reason = 'worker_lost' AND job.reap_count = 0
                                    THEN statement_timestamp()
                                    ELSE statement_timestamp() + policy.backoff_ms[LEAST(GREATEST(job.attempt_count, 1), cardinality(policy.backoff_ms))]
                                                                     * interval '1 millisecond' END AS run_again_at,
                               -- '-infinity', which a person may write in psql, has no distance from now.
                               CASE WHEN isfinite(job.ended_at) THEN
                                   round(extract(epoch FROM statement_timestamp() - job.ended_at) * 1000)::bigint
                                   END AS overdue_ms
                          FROM lost AS job
                          JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
                         CROSS JOIN LATERAL (
                               SELECT CASE WHEN job.cause IS NOT NULL THEN job.cause
                                           WHEN job.deadline_at <= job.lease_expires_at THEN 'deadline'
                                           WHEN job.is_stalled THEN 'stalled'
                                           ELSE 'lease_expired' END AS reason
                               ) AS why
                         CROSS JOIN LATERAL (
                               SELECT policy.max_reaps IS NOT NULL AND why.reason NOT IN ('deadline', 'stalled')
                                          AS counts_reaps,
                                      CASE why.reason WHEN 'lease_expired' THEN 'timeout'
                                                      WHEN 'worker_stopped' THEN 'worker_lost'
                                                      ELSE why.reason END AS code
                               ) AS budget
                         CROSS JOIN LATERAL (
                               SELECT CASE
                                      WHEN policy.on_expiry = 'fail' THEN budget.code
                                      WHEN why.reason = 'worker_stopped' THEN NULL
                                      WHEN budget.counts_reaps THEN
                                           CASE WHEN job.reap_count >= policy.max_reaps - 1 THEN 'poison' END
                                      WHEN job.attempt_count >= job.max_attempts THEN budget.code
                                      END AS fail_code
                               ) AS decided
                    ),
                    -- `= ANY (ARRAY(...))` makes the planner find the jobs by their keys. With only a join on the
                    -- verdicts, it may read the whole table for every batch.
                    reaped AS (
                        UPDATE "public"."jobreaper_jobs" AS job
                           SET "status" = -- The last branch is never used. It gives the words the type of the column, which may be an enum.
                                          CASE WHEN verdict.requeues THEN 'queued'
                                               WHEN NOT verdict.requeues THEN 'failed'
                                               ELSE job."status" END,
                               "lease_epoch" = verdict.lease_epoch + 1,
                               "reap_count" = verdict.reap_count + verdict.reaps,
                               "attempt_count" = GREATEST(verdict.attempt_count - verdict.attempts_given_back, 0),
                               "next_earliest_run_at" = CASE WHEN verdict.requeues THEN verdict.run_again_at
                                                             ELSE job."next_earliest_run_at" END,
                               "finished_at" = CASE WHEN verdict.requeues THEN job."finished_at"
                                                    ELSE statement_timestamp() END,
                               "fail_code" = CASE WHEN verdict.requeues THEN job."fail_code"
                                                  ELSE left(verdict.fail_code, 2147483647) END,
                               "fail_reason" = CASE WHEN verdict.requeues THEN job."fail_reason"
                                                    ELSE left(coalesce(verdict.fail_reason, verdict.reason),
                                                              2147483647) END,
                               "updated_at" = statement_timestamp(),
                               "locked_by" = NULL,
                               "claimed_at" = NULL,
                               "lease_expires_at" = NULL,
                               "deadline_at" = NULL,
                               "stalls_at" = NULL,
                               "dispatched_at" = NULL
                          FROM verdict
                         WHERE job."id" = verdict.id
                           AND job."id" = ANY (ARRAY(SELECT id FROM verdict))
                        RETURNING verdict.*
                    ),
                    happened (job_id, type, details) AS (
                        SELECT reaped.id::text,
                               CASE reaped.fail_code
                                   WHEN 'timeout' THEN 'reaper:failed(timeout)'
                                   WHEN 'poison' THEN 'reaper:failed(poison)'
                                   WHEN 'deadline' THEN 'reaper:failed(deadline)'
                                   WHEN 'stalled' THEN 'reaper:failed(stalled)'
                                   ELSE 'reaper:requeued' END,
                               jsonb_build_object(
                                   'reason', reaped.reason,
                                   'locked_by', reaped.locked_by,
                                   'stage', reaped.stage,
                                   'attempt', reaped.attempt_count,
                                   'epoch', reaped.lease_epoch,
                                   'claimed_at', to_char(reaped.claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                                   'last_heartbeat_at',
                                       to_char(reaped.last_heartbeat_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                                   'lease_expires_at', to_char(reaped.lease_expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                                   'overdue_ms', reaped.overdue_ms,
                                   'progress', reaped.progress,
                                   'progress_at', to_char(reaped.progress_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                                   'reaper', ('sql:' || pg_backend_pid()::text)::text,
                                   'next_earliest_run_at', CASE WHEN reaped.requeues THEN
                                       to_char(reaped.run_again_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END)
                          FROM reaped
                    ),
                    event (job_id, data) AS (
                        SELECT happened.job_id,
                               jsonb_build_object(
                                   'type', happened.type,
                                   'table', 'jobreaper_jobs'::text,
                                   'details', happened.details,
                                   -- In a query of its own, it is written once for all events.
                                   'at', (SELECT to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
                          FROM happened
                    ),
                    -- A trigger may keep an event out. Nothing reads here whether it did: the change of the job counts.
                    recorded AS (
                        INSERT INTO "public"."job_events" (job_id, data)
                        SELECT job_id, data FROM event
                    ),
                    counted AS (
                        INSERT INTO "public"."jobreaper_totals" (name, "table", stage, count, microseconds)
                        SELECT CASE WHEN requeues THEN 'requeues' ELSE 'failures' END, 'jobreaper_jobs',
                               left(coalesce(stage, ''), 255), count(*),
                               LEAST(coalesce(sum(overdue_ms), 0) * 1000, 9223372036854775807)
                          FROM reaped
                         GROUP BY requeues, left(coalesce(stage, ''), 255)
                         UNION ALL
                        SELECT 'taken_back:' || reason, 'jobreaper_jobs', '', count(*), 0
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
                LOOP
                    "jobreaper_jobs_reap".job_id := taken.id::text;
                    "jobreaper_jobs_reap".outcome := CASE WHEN taken.fail_code IS NULL THEN 'requeued' ELSE 'failed' END;
                    requeued := requeued + (taken.fail_code IS NULL)::int;
                    failed := failed + (taken.fail_code IS NOT NULL)::int;
                    RETURN NEXT;
                END LOOP;
                EXIT;
            -- OTHERS does not catch a failed ASSERT in a trigger.
            EXCEPTION WHEN OTHERS OR assert_failure THEN
                -- If the table refuses even a batch without rows, the problem is the table itself.
                IF most = 0 OR SQLSTATE IN ('25006', '25P03', '25P04', '40001', '40P01', '53300', '55P03', '57P01', '57P02', '57P03', '57P05') OR left(SQLSTATE, 2) IN ('53', '57', '58') THEN
                    RAISE;
                END IF;
                most := 0;
            END;
        END LOOP;
        again := most > 0;
        LOOP
            EXIT WHEN again AND NOT EXISTS (-- Whether a remembered row is due for another try.
                                            SELECT FROM "public"."jobreaper_refused_rows"
                                             WHERE "table" = 'jobreaper_jobs'
                                               AND verb = 'reap'
                                               AND next_try_at <= statement_timestamp());
            tried_before := tried;
            refused := '{}';
            refusals := '{}';
            -- Each candidate is tried alone, so that one that cannot be written does not stop the others.
            FOR candidate IN
                -- Dry run of a pass: its verdicts, nothing locked and nothing written.
                WITH
                -- The jobs whose lease ran out, oldest first, and the verdict on each.
                --
                -- With a limit that the planner cannot see, it reads the index in order. With a limit that it sees,
                -- it may read and sort every expired job for each batch.
                policies AS MATERIALIZED (
                    -- One row per stage; the default policy has the stage ''.
                    SELECT policy.stage,
                           policy.lease_sec,
                           policy.sla_factor,
                           policy.max_runtime_sec * interval '1 second' AS max_runtime,
                           policy.stall_after_sec * interval '1 second' AS stall_after,
                           policy.backoff_ms,
                           policy.on_expiry,
                           policy.max_reaps,
                           coalesce(policy.ttl_sec, NULL::float8) * interval '1 second' AS ttl
                      FROM "public"."jobreaper_policies"() AS policy
                ),
                expired AS MATERIALIZED (
                    SELECT job."id" AS id,
                           job."stage" AS stage,
                           job."locked_by" AS locked_by,
                           coalesce(job."attempt_count"::int, 0) AS attempt_count,
                           coalesce(job."max_attempts"::int, 3) AS max_attempts,
                           coalesce(job."reap_count", 0) AS reap_count,
                           coalesce(job."lease_epoch", 0) AS lease_epoch,
                           job."claimed_at" AS claimed_at,
                           job."last_heartbeat_at" AS last_heartbeat_at,
                           job."lease_expires_at" AS lease_expires_at,
                           job."deadline_at" AS deadline_at,
                           job."progress" AS progress,
                           job."progress_at" AS progress_at,
                           coalesce(job."stalls_at" BETWEEN job."claimed_at" AND job."lease_expires_at"
                                    AND 2 * extract(epoch FROM job."last_heartbeat_at")
                                        >= extract(epoch FROM job."stalls_at")
                                           + extract(epoch FROM GREATEST(job."progress_at", job."claimed_at")), false) AS is_stalled,
                           job."lease_expires_at" AS ended_at,
                           NULL::text AS cause,
                           NULL::text AS fail_reason
                      FROM "public"."jobreaper_jobs" AS job
                     WHERE job."status" = 'processing'
                       AND job."lease_expires_at" < statement_timestamp()
                       AND (job."next_earliest_run_at" IS NULL
                            OR job."next_earliest_run_at" <= statement_timestamp()
                            OR coalesce(job."attempt_count"::int, 0) >= coalesce(job."max_attempts"::int, 3))
                       AND coalesce(GREATEST(job."last_heartbeat_at", job."claimed_at"), '-infinity')
                           <= this_call.silent_by::timestamptz
                       AND CASE WHEN this_call.again
                                THEN EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                              WHERE refused."table" = 'jobreaper_jobs'
                                                AND refused.verb = 'reap'
                                                AND refused.key = job."id"::text
                                                AND refused.next_try_at <= statement_timestamp())
                                ELSE job."id" <> ALL (this_call.skipped::uuid[])
                                     AND (NOT (SELECT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                                               WHERE refused."table" = 'jobreaper_jobs'
                                                                 AND refused.verb = 'reap'))
                                          OR NOT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                                          WHERE refused."table" = 'jobreaper_jobs'
                                                            AND refused.verb = 'reap'
                                                            AND refused.key = job."id"::text)) END
                     ORDER BY job."lease_expires_at"
                     LIMIT (SELECT "jobreaper_jobs_reap".batch::bigint)
                ),
                -- Running without a lease, from workers older than leases: judged by the last sign of life, and
                -- only if there is a time to live. GREATEST, not COALESCE: an old heartbeat, kept from an earlier
                -- attempt, must not make a new attempt look dead.
                silent AS MATERIALIZED (
                    SELECT job."id" AS id,
                           job."stage" AS stage,
                           job."locked_by" AS locked_by,
                           coalesce(job."attempt_count"::int, 0) AS attempt_count,
                           coalesce(job."max_attempts"::int, 3) AS max_attempts,
                           coalesce(job."reap_count", 0) AS reap_count,
                           coalesce(job."lease_epoch", 0) AS lease_epoch,
                           job."claimed_at" AS claimed_at,
                           job."last_heartbeat_at" AS last_heartbeat_at,
                           job."lease_expires_at" AS lease_expires_at,
                           job."deadline_at" AS deadline_at,
                           job."progress" AS progress,
                           job."progress_at" AS progress_at,
                           coalesce(job."stalls_at" BETWEEN job."claimed_at" AND job."lease_expires_at"
                                    AND 2 * extract(epoch FROM job."last_heartbeat_at")
                                        >= extract(epoch FROM job."stalls_at")
                                           + extract(epoch FROM GREATEST(job."progress_at", job."claimed_at")), false) AS is_stalled,
                           GREATEST(job."last_heartbeat_at", job."claimed_at") + policy.ttl AS ended_at,
                           NULL::text AS cause,
                           NULL::text AS fail_reason
                      FROM "public"."jobreaper_jobs" AS job
                      JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
                     WHERE (SELECT bool_or(ttl IS NOT NULL) FROM policies)
                       AND job."status" = 'processing'
                       AND job."lease_expires_at" IS NULL
                       AND GREATEST(job."last_heartbeat_at", job."claimed_at") + policy.ttl < statement_timestamp()
                       AND (job."next_earliest_run_at" IS NULL
                            OR job."next_earliest_run_at" <= statement_timestamp()
                            OR coalesce(job."attempt_count"::int, 0) >= coalesce(job."max_attempts"::int, 3))
                       AND coalesce(GREATEST(job."last_heartbeat_at", job."claimed_at"), '-infinity')
                           <= this_call.silent_by::timestamptz
                       AND CASE WHEN this_call.again
                                THEN EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                              WHERE refused."table" = 'jobreaper_jobs'
                                                AND refused.verb = 'reap'
                                                AND refused.key = job."id"::text
                                                AND refused.next_try_at <= statement_timestamp())
                                ELSE job."id" <> ALL (this_call.skipped::uuid[])
                                     AND (NOT (SELECT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                                               WHERE refused."table" = 'jobreaper_jobs'
                                                                 AND refused.verb = 'reap'))
                                          OR NOT EXISTS (SELECT FROM "public"."jobreaper_refused_rows" AS refused
                                                          WHERE refused."table" = 'jobreaper_jobs'
                                                            AND refused.verb = 'reap'
                                                            AND refused.key = job."id"::text)) END
                     LIMIT "jobreaper_jobs_reap".batch - (SELECT count(*) FROM expired)
                ),
                lost AS (
                    SELECT * FROM expired UNION ALL SELECT * FROM silent
                ),
                -- The verdict on each lost job. After a worker that is known to be dead, there is no wait the first
                -- time; the second time, the job may be the reason. It is not if the worker had been told to stop: that
                -- costs no attempt, and no wait either.
                verdict AS MATERIALIZED (
                    SELECT job.*,
                           why.reason,
                           decided.fail_code,
                           decided.fail_code IS NULL AS requeues,
                           (decided.fail_code IS NULL
                            AND (budget.counts_reaps OR why.reason = 'worker_stopped'))::int
                               AS attempts_given_back,
                           (why.reason <> 'worker_stopped')::int AS reaps,
                           CASE WHEN why.reason = 'worker_stopped'
                                  OR why.reason = 'worker_lost' AND job.reap_count = 0
                                THEN statement_timestamp()
                                ELSE statement_timestamp() + policy.backoff_ms[LEAST(GREATEST(job.attempt_count, 1), cardinality(policy.backoff_ms))]
                                                                 * interval '1 millisecond' END AS run_again_at,
                           -- '-infinity', which a person may write in psql, has no distance from now.
                           CASE WHEN isfinite(job.ended_at) THEN
                               round(extract(epoch FROM statement_timestamp() - job.ended_at) * 1000)::bigint
                               END AS overdue_ms
                      FROM lost AS job
                      JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
                     CROSS JOIN LATERAL (
                           SELECT CASE WHEN job.cause IS NOT NULL THEN job.cause
                                       WHEN job.deadline_at <= job.lease_expires_at THEN 'deadline'
                                       WHEN job.is_stalled THEN 'stalled'
                                       ELSE 'lease_expired' END AS reason
                           ) AS why
                     CROSS JOIN LATERAL (
                           SELECT policy.max_reaps IS NOT NULL AND why.reason NOT IN ('deadline', 'stalled')
                                      AS counts_reaps,
                                  CASE why.reason WHEN 'lease_expired' THEN 'timeout'
                                                  WHEN 'worker_stopped' THEN 'worker_lost'
                                                  ELSE why.reason END AS code
                           ) AS budget
                     CROSS JOIN LATERAL (
                           SELECT CASE
                                  WHEN policy.on_expiry = 'fail' THEN budget.code
                                  WHEN why.reason = 'worker_stopped' THEN NULL
                                  WHEN budget.counts_reaps THEN
                                       CASE WHEN job.reap_count >= policy.max_reaps - 1 THEN 'poison' END
                                  WHEN job.attempt_count >= job.max_attempts THEN budget.code
                                  END AS fail_code
                           ) AS decided
                )
                SELECT id, stage, reason, fail_code, locked_by, attempt_count, lease_epoch, overdue_ms,
                       CASE WHEN requeues THEN
                           round(extract(epoch FROM run_again_at - statement_timestamp()) * 1000)::bigint
                       END AS run_again_in_ms
                  FROM verdict
                 ORDER BY ended_at
            LOOP
                BEGIN
                    -- Reap: one batch of jobs with expired leases goes back to the queue, or fails if no attempt is
                    -- left.
                    WITH
                    -- The jobs whose lease ran out, oldest first, and the verdict on each.
                    --
                    -- With a limit that the planner cannot see, it reads the index in order. With a limit that it sees,
                    -- it may read and sort every expired job for each batch.
                    policies AS MATERIALIZED (
                        -- One row per stage; the default policy has the stage ''.
                        SELECT policy.stage,
                               policy.lease_sec,
                               policy.sla_factor,
                               policy.max_runtime_sec * interval '1 second' AS max_runtime,
                               policy.stall_after_sec * interval '1 second' AS stall_after,
                               policy.backoff_ms,
                               policy.on_expiry,
                               policy.max_reaps,
                               coalesce(policy.ttl_sec, NULL::float8) * interval '1 second' AS ttl
                          FROM "public"."jobreaper_policies"() AS policy
                    ),
                    expired AS MATERIALIZED (
                        SELECT job."id" AS id,
                               job."stage" AS stage,
                               job."locked_by" AS locked_by,
                               coalesce(job."attempt_count"::int, 0) AS attempt_count,
                               coalesce(job."max_attempts"::int, 3) AS max_attempts,
                               coalesce(job."reap_count", 0) AS reap_count,
                               coalesce(job."lease_epoch", 0) AS lease_epoch,
                               job."claimed_at" AS claimed_at,
                               job."last_heartbeat_at" AS last_heartbeat_at,
                               job."lease_expires_at" AS lease_expires_at,
                               job."deadline_at" AS deadline_at,
                               job."progress" AS progress,
                               job."progress_at" AS progress_at,
                               coalesce(job."stalls_at" BETWEEN job."claimed_at" AND job."lease_expires_at"
                                        AND 2 * extract(epoch FROM job."last_heartbeat_at")
                                            >= extract(epoch FROM job."stalls_at")
                                               + extract(epoch FROM GREATEST(job."progress_at", job."claimed_at")), false) AS is_stalled,
                               job."lease_expires_at" AS ended_at,
                               NULL::text AS cause,
                               NULL::text AS fail_reason
                          FROM (SELECT * FROM "public"."jobreaper_jobs" AS job WHERE job."id" = candidate.id OFFSET 0) AS job
                         WHERE job."status" = 'processing'
                           AND job."lease_expires_at" < statement_timestamp()
                           AND (job."next_earliest_run_at" IS NULL
                                OR job."next_earliest_run_at" <= statement_timestamp()
                                OR coalesce(job."attempt_count"::int, 0) >= coalesce(job."max_attempts"::int, 3))
                           AND coalesce(GREATEST(job."last_heartbeat_at", job."claimed_at"), '-infinity')
                               <= this_call.silent_by::timestamptz
                           AND true
                         ORDER BY job."lease_expires_at"
                         LIMIT (SELECT "jobreaper_jobs_reap".batch::bigint)
                           FOR NO KEY UPDATE OF job SKIP LOCKED
                    ),
                    -- Running without a lease, from workers older than leases: judged by the last sign of life, and
                    -- only if there is a time to live. GREATEST, not COALESCE: an old heartbeat, kept from an earlier
                    -- attempt, must not make a new attempt look dead.
                    silent AS MATERIALIZED (
                        SELECT job."id" AS id,
                               job."stage" AS stage,
                               job."locked_by" AS locked_by,
                               coalesce(job."attempt_count"::int, 0) AS attempt_count,
                               coalesce(job."max_attempts"::int, 3) AS max_attempts,
                               coalesce(job."reap_count", 0) AS reap_count,
                               coalesce(job."lease_epoch", 0) AS lease_epoch,
                               job."claimed_at" AS claimed_at,
                               job."last_heartbeat_at" AS last_heartbeat_at,
                               job."lease_expires_at" AS lease_expires_at,
                               job."deadline_at" AS deadline_at,
                               job."progress" AS progress,
                               job."progress_at" AS progress_at,
                               coalesce(job."stalls_at" BETWEEN job."claimed_at" AND job."lease_expires_at"
                                        AND 2 * extract(epoch FROM job."last_heartbeat_at")
                                            >= extract(epoch FROM job."stalls_at")
                                               + extract(epoch FROM GREATEST(job."progress_at", job."claimed_at")), false) AS is_stalled,
                               GREATEST(job."last_heartbeat_at", job."claimed_at") + policy.ttl AS ended_at,
                               NULL::text AS cause,
                               NULL::text AS fail_reason
                          FROM (SELECT * FROM "public"."jobreaper_jobs" AS job WHERE job."id" = candidate.id OFFSET 0) AS job
                          JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
                         WHERE (SELECT bool_or(ttl IS NOT NULL) FROM policies)
                           AND job."status" = 'processing'
                           AND job."lease_expires_at" IS NULL
                           AND GREATEST(job."last_heartbeat_at", job."claimed_at") + policy.ttl < statement_timestamp()
                           AND (job."next_earliest_run_at" IS NULL
                                OR job."next_earliest_run_at" <= statement_timestamp()
                                OR coalesce(job."attempt_count"::int, 0) >= coalesce(job."max_attempts"::int, 3))
                           AND coalesce(GREATEST(job."last_heartbeat_at", job."claimed_at"), '-infinity')
                               <= this_call.silent_by::timestamptz
                           AND true
                         LIMIT "jobreaper_jobs_reap".batch - (SELECT count(*) FROM expired)
                           FOR NO KEY UPDATE OF job SKIP LOCKED
                    ),
                    lost AS (
                        SELECT * FROM expired UNION ALL SELECT * FROM silent
                    ),
                    -- The verdict on each lost job. After a worker that is known to be dead, there is no wait the first
                    -- time; the second time, the job may be the reason. It is not if the worker had been told to stop: that
                    -- costs no attempt, and no wait either.
                    verdict AS MATERIALIZED (
                        SELECT job.*,
                               why.reason,
                               decided.fail_code,
                               decided.fail_code IS NULL AS requeues,
                               (decided.fail_code IS NULL
                                AND (budget.counts_reaps OR why.reason = 'worker_stopped'))::int
                                   AS attempts_given_back,
                               (why.reason <> 'worker_stopped')::int AS reaps,
                               CASE WHEN why.reason = 'worker_stopped'
                                      OR why.reason = 'worker_lost' AND job.reap_count = 0
                                    THEN statement_timestamp()
                                    ELSE statement_timestamp() + policy.backoff_ms[LEAST(GREATEST(job.attempt_count, 1), cardinality(policy.backoff_ms))]
                                                                     * interval '1 millisecond' END AS run_again_at,
                               -- '-infinity', which a person may write in psql, has no distance from now.
                               CASE WHEN isfinite(job.ended_at) THEN
                                   round(extract(epoch FROM statement_timestamp() - job.ended_at) * 1000)::bigint
                                   END AS overdue_ms
                          FROM lost AS job
                          JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
                         CROSS JOIN LATERAL (
                               SELECT CASE WHEN job.cause IS NOT NULL THEN job.cause
                                           WHEN job.deadline_at <= job.lease_expires_at THEN 'deadline'
                                           WHEN job.is_stalled THEN 'stalled'
                                           ELSE 'lease_expired' END AS reason
                               ) AS why
                         CROSS JOIN LATERAL (
                               SELECT policy.max_reaps IS NOT NULL AND why.reason NOT IN ('deadline', 'stalled')
                                          AS counts_reaps,
                                      CASE why.reason WHEN 'lease_expired' THEN 'timeout'
                                                      WHEN 'worker_stopped' THEN 'worker_lost'
                                                      ELSE why.reason END AS code
                               ) AS budget
                         CROSS JOIN LATERAL (
                               SELECT CASE
                                      WHEN policy.on_expiry = 'fail' THEN budget.code
                                      WHEN why.reason = 'worker_stopped' THEN NULL
                                      WHEN budget.counts_reaps THEN
                                           CASE WHEN job.reap_count >= policy.max_reaps - 1 THEN 'poison' END
                                      WHEN job.attempt_count >= job.max_attempts THEN budget.code
                                      END AS fail_code
                               ) AS decided
                    ),
                    -- `= ANY (ARRAY(...))` makes the planner find the jobs by their keys. With only a join on the
                    -- verdicts, it may read the whole table for every batch.
                    reaped AS (
                        UPDATE "public"."jobreaper_jobs" AS job
                           SET "status" = -- The last branch is never used. It gives the words the type of the column, which may be an enum.
                                          CASE WHEN verdict.requeues THEN 'queued'
                                               WHEN NOT verdict.requeues THEN 'failed'
                                               ELSE job."status" END,
                               "lease_epoch" = verdict.lease_epoch + 1,
                               "reap_count" = verdict.reap_count + verdict.reaps,
                               "attempt_count" = GREATEST(verdict.attempt_count - verdict.attempts_given_back, 0),
                               "next_earliest_run_at" = CASE WHEN verdict.requeues THEN verdict.run_again_at
                                                             ELSE job."next_earliest_run_at" END,
                               "finished_at" = CASE WHEN verdict.requeues THEN job."finished_at"
                                                    ELSE statement_timestamp() END,
                               "fail_code" = CASE WHEN verdict.requeues THEN job."fail_code"
                                                  ELSE left(verdict.fail_code, 2147483647) END,
                               "fail_reason" = CASE WHEN verdict.requeues THEN job."fail_reason"
                                                    ELSE left(coalesce(verdict.fail_reason, verdict.reason),
                                                              2147483647) END,
                               "updated_at" = statement_timestamp(),
                               "locked_by" = NULL,
                               "claimed_at" = NULL,
                               "lease_expires_at" = NULL,
                               "deadline_at" = NULL,
                               "stalls_at" = NULL,
                               "dispatched_at" = NULL
                          FROM verdict
                         WHERE job."id" = verdict.id
                           AND job."id" = ANY (ARRAY(SELECT id FROM verdict))
                        RETURNING verdict.*
                    ),
                    happened (job_id, type, details) AS (
                        SELECT reaped.id::text,
                               CASE reaped.fail_code
                                   WHEN 'timeout' THEN 'reaper:failed(timeout)'
                                   WHEN 'poison' THEN 'reaper:failed(poison)'
                                   WHEN 'deadline' THEN 'reaper:failed(deadline)'
                                   WHEN 'stalled' THEN 'reaper:failed(stalled)'
                                   ELSE 'reaper:requeued' END,
                               jsonb_build_object(
                                   'reason', reaped.reason,
                                   'locked_by', reaped.locked_by,
                                   'stage', reaped.stage,
                                   'attempt', reaped.attempt_count,
                                   'epoch', reaped.lease_epoch,
                                   'claimed_at', to_char(reaped.claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                                   'last_heartbeat_at',
                                       to_char(reaped.last_heartbeat_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                                   'lease_expires_at', to_char(reaped.lease_expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                                   'overdue_ms', reaped.overdue_ms,
                                   'progress', reaped.progress,
                                   'progress_at', to_char(reaped.progress_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                                   'reaper', ('sql:' || pg_backend_pid()::text)::text,
                                   'next_earliest_run_at', CASE WHEN reaped.requeues THEN
                                       to_char(reaped.run_again_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END)
                          FROM reaped
                    ),
                    event (job_id, data) AS (
                        SELECT happened.job_id,
                               jsonb_build_object(
                                   'type', happened.type,
                                   'table', 'jobreaper_jobs'::text,
                                   'details', happened.details,
                                   -- In a query of its own, it is written once for all events.
                                   'at', (SELECT to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
                          FROM happened
                    ),
                    -- A trigger may keep an event out. Nothing reads here whether it did: the change of the job counts.
                    recorded AS (
                        INSERT INTO "public"."job_events" (job_id, data)
                        SELECT job_id, data FROM event
                    ),
                    counted AS (
                        INSERT INTO "public"."jobreaper_totals" (name, "table", stage, count, microseconds)
                        SELECT CASE WHEN requeues THEN 'requeues' ELSE 'failures' END, 'jobreaper_jobs',
                               left(coalesce(stage, ''), 255), count(*),
                               LEAST(coalesce(sum(overdue_ms), 0) * 1000, 9223372036854775807)
                          FROM reaped
                         GROUP BY requeues, left(coalesce(stage, ''), 255)
                         UNION ALL
                        SELECT 'taken_back:' || reason, 'jobreaper_jobs', '', count(*), 0
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
                    tried := tried + 1;
                    IF FOUND THEN
                        -- Check what was written by one try, and no more than that.
                        IF deferred IS NOT NULL THEN
                            EXECUTE 'SET CONSTRAINTS ' || deferred || ' IMMEDIATE';
                            EXECUTE 'SET CONSTRAINTS ' || deferred || ' DEFERRED';
                        END IF;
                        "jobreaper_jobs_reap".job_id := taken.id::text;
                        "jobreaper_jobs_reap".outcome := CASE WHEN taken.fail_code IS NULL THEN 'requeued' ELSE 'failed' END;
                        requeued := requeued + (taken.fail_code IS NULL)::int;
                        failed := failed + (taken.fail_code IS NOT NULL)::int;
                        RETURN NEXT;
                        written := array_append(written, candidate.id::text);
                    ELSE
                        skipped := array_append(skipped, candidate.id::uuid);
                        locked := array_append(locked, candidate.id::text);
                    END IF;
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
                    tried := tried + 1;
                    refused := array_append(refused, candidate.id::text);
                    refusals := array_append(refusals, said);
                    bad_rows := bad_rows + 1;
                    IF bad_rows <= 20 THEN
                        problems := problems || format('%s: job %s: %s', 'jobreaper_jobs', candidate.id, said);
                        RAISE WARNING 'cannot reap job %: % (%)', candidate.id, said, SQLSTATE;
                    END IF;
                END;
                EXIT WHEN clock_timestamp() > began + 30 * interval '1 second';
            END LOOP;
            BEGIN
                FOR taken IN -- Remember rows that could not be written, and leave them out for a minute, twice as long each
                             -- further time, up to an hour. In the order of their keys, so that two passes do not wait for each
                             -- other.
                             INSERT INTO "public"."jobreaper_refused_rows" AS refused
                                    ("table", verb, key, error, tries, next_try_at)
                             SELECT 'jobreaper_jobs', 'reap', given.key, given.error, 1,
                                    statement_timestamp() + interval '1 minute'
                               FROM unnest(this_call.refused::text[], this_call.refusals::text[]) AS given (key, error)
                              ORDER BY given.key
                             ON CONFLICT ("table", verb, key) DO UPDATE
                                SET error = excluded.error,
                                    tries = refused.tries + 1,
                                    next_try_at = statement_timestamp()
                                        + LEAST(interval '1 minute' * 2 ^ LEAST(refused.tries, 20), interval '1 hour')
                              WHERE refused.next_try_at <= statement_timestamp()
                             RETURNING key LOOP END LOOP;
                IF again THEN
                    FOR taken IN -- Forget rows that could be written. If all rows that were due before a moment have been tried,
                                 -- also forget those that were not found: they are finished or deleted, or have a valid lease again,
                                 -- and are not only locked.
                                 DELETE FROM "public"."jobreaper_refused_rows"
                                  WHERE "table" = 'jobreaper_jobs'
                                    AND verb = 'reap'
                                    AND (key = ANY (this_call.written::text[])
                                         OR this_call.tried - this_call.tried_before < "jobreaper_jobs_reap".batch
                                            AND next_try_at <= statement_timestamp()
                                            AND key <> ALL (this_call.locked::text[]))
                                 RETURNING key LOOP END LOOP;
                END IF;
            EXCEPTION WHEN OTHERS THEN
                -- What may be told of an error: its first line, if PostgreSQL quotes no values in it.
                said := left(CASE WHEN SQLERRM ~ 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]' THEN substring(SQLERRM FROM 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]')
                                  WHEN (left(SQLSTATE, 2) IN ('22', '2F', '38', '39', 'HV')
                                        OR SQLSTATE IN ('42601', '42602', '42622'))
                                       AND SQLSTATE NOT IN ('22001', '22012')
                                  THEN 'SQLSTATE ' || SQLSTATE
                                  ELSE split_part(SQLERRM, chr(10), 1) END, 1000);
                problems := problems || format('%s: rows that cannot be written are not remembered: %s',
                                               'jobreaper_jobs', said);
                skipped := skipped || refused::uuid[];
            END;
            EXIT WHEN again;
            -- It returns nothing only if there is nothing left to reap.
            again := requeued + failed > 0 OR tried = tried_before
                OR clock_timestamp() > began + 30 * interval '1 second';
        END LOOP;
        IF bad_rows > 20 THEN
            problems := problems || format('%s: %s more rows cannot be written',
                'jobreaper_jobs', to_char(bad_rows - 20, 'FM999,999,999'));
        END IF;
    END IF;
    -- What cannot be recorded undoes nothing that was reaped.
    BEGIN
        INSERT INTO "public"."jobreaper_passes"
               (started_at, duration_ms, trigger, reaper, counts, requeued, failed, held,
                held_reason, silent_until, error)
        VALUES (statement_timestamp(),
                extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000,
                'sql',
                'sql:' || pg_backend_pid()::text,
                jsonb_build_object('jobreaper_jobs',
                                   jsonb_build_object('requeued', requeued, 'failed', failed)),
                requeued, failed, reason_to_hold IS NOT NULL, reason_to_hold,
                this_call.silent_until,
                nullif(array_to_string(problems, chr(10)), ''));
        IF silent_by > '-infinity' THEN
            INSERT INTO "public"."jobreaper_totals" (name, "table", microseconds)
            VALUES ('scans', 'jobreaper_jobs',
                    extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000);
            INSERT INTO "public"."jobreaper_totals" (name, "table")
            SELECT 'clean_scans', 'jobreaper_jobs' WHERE problems = '{}';
        END IF;
        INSERT INTO "public"."jobreaper_totals" (name, "table")
        SELECT 'held_passes', '' WHERE reason_to_hold IS NOT NULL
         UNION ALL
        SELECT 'common_silences', '' WHERE this_call.silent_until IS NOT NULL;
    EXCEPTION WHEN OTHERS THEN
        -- What may be told of an error: its first line, if PostgreSQL quotes no values in it.
        said := left(CASE WHEN SQLERRM ~ 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]' THEN substring(SQLERRM FROM 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]')
                          WHEN (left(SQLSTATE, 2) IN ('22', '2F', '38', '39', 'HV')
                                OR SQLSTATE IN ('42601', '42602', '42622'))
                               AND SQLSTATE NOT IN ('22001', '22012')
                          THEN 'SQLSTATE ' || SQLSTATE
                          ELSE split_part(SQLERRM, chr(10), 1) END, 1000);
        RAISE WARNING 'the pass could not be recorded: % (%)', said, SQLSTATE;
    END;
    BEGIN
        FOR taken IN
            -- Fold: assign names to new stages, and merge each total into one row, its oldest. This is one
            -- statement, so that a reader sees the state before or after. Rows that another fold has locked and
            -- rows that are not committed yet are left to the next fold, so nothing waits.
            WITH
            -- Names: which stages have a series of their own. A name is given once and never taken back, or the
            -- counters would go down. Stages with a policy have one without a place, of the others the first
            -- few of each table. One transaction at a time gives names, and the others do not wait for it: what
            -- was committed since this statement began is a conflict, and left as it is.
            named AS (
                INSERT INTO "public"."jobreaper_stages" ("table", stage, place)
                SELECT "table", stage, place
                  FROM (SELECT "table", stage,
                               CASE WHEN NOT is_known
                                    THEN (SELECT coalesce(max(named.place), 0)
                                            FROM "public"."jobreaper_stages" AS named
                                           WHERE named."table" = unnamed."table")
                                         + row_number() OVER (PARTITION BY "table", is_known ORDER BY min(id))
                               END AS place
                          FROM (SELECT total.*, total.stage = ANY ((SELECT array_agg(policy.stage) FROM "public"."jobreaper_policies"() AS policy)::text[]) AS is_known
                                  FROM "public"."jobreaper_totals" AS total
                                  LEFT JOIN "public"."jobreaper_stages" AS named USING ("table", stage)
                                 WHERE named.id IS NULL) AS unnamed
                         GROUP BY "table", stage, is_known) AS placed
                 WHERE (place IS NULL OR place <= 50)
                   AND pg_try_advisory_xact_lock(hashtext('jobreaper stages'), hashtext("table"))
                ON CONFLICT DO NOTHING
            ),
            total AS MATERIALIZED (
                SELECT * FROM "public"."jobreaper_totals" FOR UPDATE SKIP LOCKED
            ),
            labelled AS MATERIALIZED (
                SELECT id, name, "table", coalesce(label, stage) AS stage, count, microseconds, last_at
                  FROM (-- The rows of `total` with their stage as a label. Once all names of a table are assigned, stages
                        -- without a name share one, so that the number of series is limited. Until then, a stage without a
                        -- name has no label, because its label is not known yet.
                        SELECT total.*,
                               CASE WHEN named.id IS NOT NULL OR total.stage = ANY ((SELECT array_agg(policy.stage) FROM "public"."jobreaper_policies"() AS policy)::text[])
                                    THEN total.stage
                                    WHEN last_named.id IS NOT NULL
                                    THEN 'other'
                               END AS label
                          FROM total
                          LEFT JOIN "public"."jobreaper_stages" AS named
                            ON named."table" = total."table"
                           AND named.stage = total.stage
                          LEFT JOIN "public"."jobreaper_stages" AS last_named
                            ON last_named."table" = total."table"
                           AND last_named.place = 50) AS labelled
            ),
            folded AS (
                SELECT name, "table", stage,
                       min(id) AS id,
                       LEAST(sum(count), 9223372036854775807) AS count,
                       LEAST(sum(microseconds), 9223372036854775807) AS microseconds,
                       max(last_at) AS last_at
                  FROM labelled
                 GROUP BY name, "table", stage
                HAVING count(*) > 1
            ),
            merged AS (
                DELETE FROM "public"."jobreaper_totals" AS total
                 USING labelled JOIN folded USING (name, "table", stage)
                 WHERE total.id = labelled.id
                   AND labelled.id <> folded.id
            )
            UPDATE "public"."jobreaper_totals" AS total
               SET stage = folded.stage,
                   count = folded.count,
                   microseconds = folded.microseconds,
                   last_at = folded.last_at
              FROM folded
             WHERE total.id = folded.id
            RETURNING total.id
        LOOP
        END LOOP;
    EXCEPTION WHEN OTHERS THEN
        -- What may be told of an error: its first line, if PostgreSQL quotes no values in it.
        said := left(CASE WHEN SQLERRM ~ 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]' THEN substring(SQLERRM FROM 'a trigger or a rule suppressed the write of [0-9]+ row[(]s[)]')
                          WHEN (left(SQLSTATE, 2) IN ('22', '2F', '38', '39', 'HV')
                                OR SQLSTATE IN ('42601', '42602', '42622'))
                               AND SQLSTATE NOT IN ('22001', '22012')
                          THEN 'SQLSTATE ' || SQLSTATE
                          ELSE split_part(SQLERRM, chr(10), 1) END, 1000);
        RAISE WARNING 'the totals could not be folded: % (%)', said, SQLSTATE;
    END;
END
$body$
