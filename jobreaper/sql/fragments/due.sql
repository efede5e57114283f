-- The due jobs, in order, within the limits of their stages and queues.

-- name: left_out
-- Read once, and not for each condition that needs it.
left_out AS MATERIALIZED (
    SELECT ARRAY(SELECT name FROM {jobreaper_pauses} WHERE "table" = {table_name})::text[] AS paused,
           -- They are tried again, with the others, once their time has come.
           ARRAY(SELECT key
                   FROM {jobreaper_refused_rows}
                  WHERE "table" = {table_name}
                    AND verb = {verb_claim}
                    AND next_try_at > statement_timestamp()) AS refused
)


-- name: named
named AS MATERIALIZED (
    SELECT job.{id} AS id{and_stage}
      FROM {table} AS job
     WHERE job.{id} = %(id)s::{id_type}
       AND {is_queued}
       AND (job.{next_earliest_run_at} IS NULL
            OR job.{next_earliest_run_at} <= statement_timestamp())
       AND {wanted}
       FOR NO KEY UPDATE SKIP LOCKED
)


-- name: due_named
-- The one job of a key, if it is due.
{left_out},
{named},
{picked} AS (
    SELECT id FROM named
)


-- name: due
-- The next due jobs. Retries and scheduled jobs that are due come before jobs that never had a
-- time. Two index ranges serve this order; a single ORDER BY over both would read every job that is
-- scheduled for the future. Ordered only by id, the second range might be read from the key's
-- index, with every finished job. FOR NO KEY UPDATE allows inserts of rows that refer to a job by
-- foreign key meanwhile.
{looking}
{left_out},
{named},
timed AS MATERIALIZED (
    SELECT job.{id} AS id{and_is_wanted}
      FROM {table} AS job
     WHERE {is_queued}
       AND {of_no_key}
       AND job.{next_earliest_run_at} <= statement_timestamp()
       AND {wanted_or_late}
     ORDER BY job.{next_earliest_run_at}, job.{id}
     LIMIT %(n)s
       FOR NO KEY UPDATE SKIP LOCKED
),
untimed AS MATERIALIZED (
    SELECT job.{id} AS id{and_is_wanted}
      FROM {table} AS job
     WHERE {is_queued}
       AND {of_no_key}
       AND job.{next_earliest_run_at} IS NULL
       AND {wanted_or_late}
     ORDER BY job.{next_earliest_run_at}, job.{id}
     LIMIT %(n)s - (SELECT count(*) FROM timed)
       FOR NO KEY UPDATE SKIP LOCKED
),
next AS (
    SELECT * FROM timed UNION ALL SELECT * FROM untimed
),
{picked} AS (
    {or_named}
    SELECT id FROM next
    {where_wanted}
)


-- name: due_by_priority
-- The next due jobs, highest priority first; within a priority as in due.sql. Each priority has its
-- own range in the index, which is read only while more jobs are needed: a single ORDER BY over all
-- of them would read every job of a higher priority that is scheduled for the future. As in
-- due.sql, nothing is ordered only by id. The last step finds no lower priority: NULL, which stands
-- for the jobs without a priority.
{looking}
{left_out},
{named},
next AS MATERIALIZED (
    WITH RECURSIVE present (priority) AS (
        SELECT (SELECT job.{priority}
                  FROM {table} AS job
                 WHERE {is_queued}
                   AND job.{priority} IS NOT NULL
                 ORDER BY job.{priority} DESC
                 LIMIT 1)
         UNION ALL
        SELECT (SELECT job.{priority}
                  FROM {table} AS job
                 WHERE {is_queued}
                   AND job.{priority} < present.priority
                 ORDER BY job.{priority} DESC
                 LIMIT 1)
          FROM present
         WHERE present.priority IS NOT NULL
    )
    SELECT of_priority.*
      FROM present
     CROSS JOIN LATERAL (
           {of_present}
           ) AS of_priority
     WHERE {of_no_key}
     LIMIT %(n)s
),
{picked} AS (
    {or_named}
    SELECT id FROM next
    {where_wanted}
)


-- name: due_of_priority
-- All have the same priority. It is in the ORDER BY because otherwise the index would not serve
-- NULL.
SELECT *
  FROM (SELECT job.{id} AS id{and_is_wanted}
          FROM {table} AS job
         WHERE {is_queued}
           AND {has_priority}
           AND job.{next_earliest_run_at} <= statement_timestamp()
           AND {wanted_or_late}
         ORDER BY job.{priority} DESC, job.{next_earliest_run_at}, job.{id}
         LIMIT %(n)s
           FOR NO KEY UPDATE SKIP LOCKED) AS timed
 UNION ALL
SELECT *
  FROM (SELECT job.{id} AS id{and_is_wanted}
          FROM {table} AS job
         WHERE {is_queued}
           AND {has_priority}
           AND job.{next_earliest_run_at} IS NULL
           AND {wanted_or_late}
         ORDER BY job.{priority} DESC, job.{next_earliest_run_at}, job.{id}
         LIMIT %(n)s
           FOR NO KEY UPDATE SKIP LOCKED) AS untimed


-- name: due_within_limits
{slots},
{sent_in_vain}
{due_or_more},
due AS (
    SELECT ranked.id
      FROM (SELECT job.{id} AS id,
                   of_stage.free AS free_in_stage,
                   of_queue.free AS free_in_queue,
                   row_number() OVER (
                       PARTITION BY job.{stage}
                       ORDER BY {by_priority}job.{next_earliest_run_at}, job.{id}) AS in_stage,
                   row_number() OVER (
                       PARTITION BY {queue_of_job}
                       ORDER BY {by_priority}job.{next_earliest_run_at}, job.{id}) AS in_queue
              FROM {table} AS job
              LEFT JOIN slots AS of_stage ON of_stage.stage = job.{stage}
              LEFT JOIN slots AS of_queue ON of_queue.queue = {queue_of_job}
             WHERE job.{id} = ANY (ARRAY(SELECT id FROM due_or_more))) AS ranked
     WHERE (ranked.free_in_stage IS NULL OR ranked.in_stage <= ranked.free_in_stage)
       AND (ranked.free_in_queue IS NULL OR ranked.in_queue <= ranked.free_in_queue)
)


-- name: slots
-- How many more jobs of each limited stage and queue may run, for the requested stages. A job whose
-- lease ran out does not count. Counted only up to the limit.
slots AS MATERIALIZED (
    SELECT limits.stage,
           limits.queue,
           limits.max_running - (
               SELECT count(*)
                 FROM (SELECT 1
                         FROM {table} AS job
                        WHERE {of_limit}
                          AND {is_processing}
                          AND job.{lease_expires_at} >= statement_timestamp()
                       {or_sent}
                       LIMIT limits.max_running) AS job) AS free
      FROM jsonb_to_recordset(%(limits)s::jsonb) AS limits (
           stage text, queue text, max_running int)
     WHERE (%(stages)s::text[] IS NULL
            OR limits.stage IS NULL
            OR limits.stage = ANY (%(stages)s::text[]))
       AND (%(id)s::{id_type} IS NULL
            OR EXISTS (SELECT FROM {table} AS job
                        WHERE job.{id} = %(id)s::{id_type} AND {of_limit}))
)


-- name: or_sent
-- A message on its way will claim its job; further ones would find no room. No index
-- contains when a job was sent, but a job that was sent was due: so only due jobs are read, as in
-- due.sql.
 UNION ALL
SELECT 1
  FROM {table} AS job
 WHERE {of_limit}
   AND {is_queued}
   AND job.{next_earliest_run_at} <= statement_timestamp()
   AND job.{dispatched_at} >= statement_timestamp() - make_interval(secs => %(again_sec)s)
 UNION ALL
SELECT 1
  FROM {table} AS job
 WHERE {of_limit}
   AND {is_queued}
   AND job.{next_earliest_run_at} IS NULL
   AND job.{dispatched_at} >= statement_timestamp() - make_interval(secs => %(again_sec)s)


-- name: sent_in_vain
-- A message that finds its stage or queue full is unmarked, so that another one can be sent.
sent_in_vain AS (
    UPDATE {table} AS job
       SET {dispatched_at} = NULL
     WHERE job.{id} = %(id)s::{id_type}
       AND {is_queued}
       AND {is_full}
),
