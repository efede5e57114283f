-- Dispatch: mark due jobs as sent, and return them in the order in which to send them. A job that
-- was sent recently is skipped until its message has expired.
WITH
-- The next due jobs, highest priority first; within a priority as in due.sql. Each priority has its
-- own range in the index, which is read only while more jobs are needed: a single ORDER BY over all
-- of them would read every job of a higher priority that is scheduled for the future. As in
-- due.sql, nothing is ordered only by id. The last step finds no lower priority: NULL, which stands
-- for the jobs without a priority.
-- Read once, and not for each condition that needs it.
left_out AS MATERIALIZED (
    SELECT ARRAY(SELECT name FROM jobreaper_pauses WHERE "table" = 'jobreaper_jobs')::text[] AS paused,
           -- They are tried again, with the others, once their time has come.
           ARRAY(SELECT key
                   FROM jobreaper_refused_rows
                  WHERE "table" = 'jobreaper_jobs'
                    AND verb = 'claim'
                    AND next_try_at > statement_timestamp()) AS refused
),
named AS MATERIALIZED (
    SELECT job."id" AS id
      FROM "jobreaper_jobs" AS job
     WHERE job."id" = %(id)s::uuid
       AND job."status" = 'queued'
       AND (job."next_earliest_run_at" IS NULL
            OR job."next_earliest_run_at" <= statement_timestamp())
       AND (job."dispatched_at" IS NULL
            OR job."dispatched_at" < statement_timestamp() - make_interval(secs => %(again_sec)s))
           AND (%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
           AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
       FOR NO KEY UPDATE SKIP LOCKED
),
next AS MATERIALIZED (
    WITH RECURSIVE present (priority) AS (
        SELECT (SELECT job."priority"
                  FROM "jobreaper_jobs" AS job
                 WHERE job."status" = 'queued'
                   AND job."priority" IS NOT NULL
                 ORDER BY job."priority" DESC
                 LIMIT 1)
         UNION ALL
        SELECT (SELECT job."priority"
                  FROM "jobreaper_jobs" AS job
                 WHERE job."status" = 'queued'
                   AND job."priority" < present.priority
                 ORDER BY job."priority" DESC
                 LIMIT 1)
          FROM present
         WHERE present.priority IS NOT NULL
    )
    SELECT of_priority.*
      FROM present
     CROSS JOIN LATERAL (
           -- All have the same priority. It is in the ORDER BY because otherwise the index would not serve
           -- NULL.
           SELECT *
             FROM (SELECT job."id" AS id
                     FROM "jobreaper_jobs" AS job
                    WHERE job."status" = 'queued'
                      AND job."priority" = present.priority
                      AND job."next_earliest_run_at" <= statement_timestamp()
                      AND (job."dispatched_at" IS NULL
                           OR job."dispatched_at" < statement_timestamp() - make_interval(secs => %(again_sec)s))
                          AND (%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
                          AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                          AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                          AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                          AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                    ORDER BY job."priority" DESC, job."next_earliest_run_at", job."id"
                    LIMIT %(n)s
                      FOR NO KEY UPDATE SKIP LOCKED) AS timed
            UNION ALL
           SELECT *
             FROM (SELECT job."id" AS id
                     FROM "jobreaper_jobs" AS job
                    WHERE job."status" = 'queued'
                      AND job."priority" = present.priority
                      AND job."next_earliest_run_at" IS NULL
                      AND (job."dispatched_at" IS NULL
                           OR job."dispatched_at" < statement_timestamp() - make_interval(secs => %(again_sec)s))
                          AND (%(stages)s::text[] IS NULL OR job."stage" = ANY (%(stages)s::text[]))
                          AND coalesce(job."stage", '') <> ALL ((SELECT paused FROM left_out)::text[])
                          AND coalesce(job."type"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                          AND coalesce('queue:' || job."queue"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
                          AND job."id"::text NOT IN (SELECT unnest(refused) FROM left_out)
                    ORDER BY job."priority" DESC, job."next_earliest_run_at", job."id"
                    LIMIT %(n)s
                      FOR NO KEY UPDATE SKIP LOCKED) AS untimed
           ) AS of_priority
     WHERE %(id)s::uuid IS NULL
     LIMIT %(n)s
),
due AS (
    SELECT id FROM named UNION ALL
    SELECT id FROM next
),
marked AS (
    UPDATE "jobreaper_jobs" AS job
       SET "dispatched_at" = statement_timestamp()
     WHERE job."id" = ANY (ARRAY(SELECT id FROM due))
    RETURNING job.*
)
SELECT job."id", job."stage", job."dispatched_at"
  FROM marked AS job
 WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
       -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
       -- an error, as of any row that cannot be written.
       (SELECT CASE WHEN count(*) = (SELECT count(*) FROM marked) THEN true
                    ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM marked))::text
                          || ' row(s)')::boolean END
          FROM due)
 ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id"
