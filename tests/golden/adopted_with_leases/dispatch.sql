-- Dispatch: mark due jobs as sent, and return them in the order in which to send them. A job that
-- was sent recently is skipped until its message has expired.
WITH
-- The next due jobs. Retries and scheduled jobs that are due come before jobs that never had a
-- time. Two index ranges serve this order; a single ORDER BY over both would read every job that is
-- scheduled for the future. Ordered only by id, the second range might be read from the key's
-- index, with every finished job. FOR NO KEY UPDATE allows inserts of rows that refer to a job by
-- foreign key meanwhile.
-- Read once, and not for each condition that needs it.
left_out AS MATERIALIZED (
    SELECT ARRAY(SELECT name FROM jobreaper_pauses WHERE "table" = 'office.Errands')::text[] AS paused,
           -- They are tried again, with the others, once their time has come.
           ARRAY(SELECT key
                   FROM jobreaper_refused_rows
                  WHERE "table" = 'office.Errands'
                    AND verb = 'claim'
                    AND next_try_at > statement_timestamp()) AS refused
),
named AS MATERIALIZED (
    SELECT job."Number" AS id
      FROM "office"."Errands" AS job
     WHERE job."Number" = %(id)s::bigint
       AND job."State" = 'waiting'
       AND (job."not_before" IS NULL
            OR job."not_before" <= statement_timestamp())
       AND (job."sent" IS NULL
            OR job."sent" < statement_timestamp() - make_interval(secs => %(again_sec)s))
           AND (%(stages)s::text[] IS NULL OR job."kind"::text = ANY (%(stages)s::text[]))
           AND coalesce(job."kind"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND job."Number"::text NOT IN (SELECT unnest(refused) FROM left_out)
       FOR NO KEY UPDATE SKIP LOCKED
),
timed AS MATERIALIZED (
    SELECT job."Number" AS id
      FROM "office"."Errands" AS job
     WHERE job."State" = 'waiting'
       AND %(id)s::bigint IS NULL
       AND job."not_before" <= statement_timestamp()
       AND (job."sent" IS NULL
            OR job."sent" < statement_timestamp() - make_interval(secs => %(again_sec)s))
           AND (%(stages)s::text[] IS NULL OR job."kind"::text = ANY (%(stages)s::text[]))
           AND coalesce(job."kind"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND job."Number"::text NOT IN (SELECT unnest(refused) FROM left_out)
     ORDER BY job."not_before", job."Number"
     LIMIT %(n)s
       FOR NO KEY UPDATE SKIP LOCKED
),
untimed AS MATERIALIZED (
    SELECT job."Number" AS id
      FROM "office"."Errands" AS job
     WHERE job."State" = 'waiting'
       AND %(id)s::bigint IS NULL
       AND job."not_before" IS NULL
       AND (job."sent" IS NULL
            OR job."sent" < statement_timestamp() - make_interval(secs => %(again_sec)s))
           AND (%(stages)s::text[] IS NULL OR job."kind"::text = ANY (%(stages)s::text[]))
           AND coalesce(job."kind"::text, '') <> ALL ((SELECT paused FROM left_out)::text[])
           AND job."Number"::text NOT IN (SELECT unnest(refused) FROM left_out)
     ORDER BY job."not_before", job."Number"
     LIMIT %(n)s - (SELECT count(*) FROM timed)
       FOR NO KEY UPDATE SKIP LOCKED
),
next AS (
    SELECT * FROM timed UNION ALL SELECT * FROM untimed
),
due AS (
    SELECT id FROM named UNION ALL
    SELECT id FROM next
),
marked AS (
    UPDATE "office"."Errands" AS job
       SET "sent" = statement_timestamp()
     WHERE job."Number" = ANY (ARRAY(SELECT id FROM due))
    RETURNING job.*
)
SELECT job."Number", job."kind"::text, job."sent"
  FROM marked AS job
 WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
       -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
       -- an error, as of any row that cannot be written.
       (SELECT CASE WHEN count(*) = (SELECT count(*) FROM marked) THEN true
                    ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM marked))::text
                          || ' row(s)')::boolean END
          FROM due)
 ORDER BY job."not_before", job."Number"
