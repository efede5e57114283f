-- Jobs on their way to a broker, and queued jobs that nothing runs.

-- name: dispatch
-- Dispatch: mark due jobs as sent, and return them in the order in which to send them. A job that
-- was sent recently is skipped until its message has expired.
WITH
{due},
marked AS (
    UPDATE {table} AS job
       SET {dispatched_at} = statement_timestamp()
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM due))
    RETURNING job.*
)
SELECT job.{id}, job.{stage}, job.{dispatched_at}{key_as_read}
  FROM marked AS job
 WHERE {all_written}
 ORDER BY {by_priority}job.{next_earliest_run_at}, job.{id}


-- name: undo_dispatch
-- The broker did not accept these messages. They have to be sent again as soon as it does.
UPDATE {table} AS job
   SET {dispatched_at} = NULL
  FROM unnest(%(ids)s::{id_type}[], %(dispatched_at)s::timestamptz[]) AS unsent (id, dispatched_at)
 WHERE job.{id} = unsent.id
   AND {is_queued}
   AND job.{dispatched_at} = unsent.dispatched_at
RETURNING job.{id}


-- name: unhandled
-- Queued jobs that nothing runs, by type in the ready-made queue, whose handlers are by type, and
-- by stage elsewhere. Only the first jobs in line are read, and not all are counted. A job that
-- nothing runs eventually comes to the front.
SELECT kind, count(*)
  FROM (SELECT kind
          FROM (SELECT {kind} AS kind, job.{stage} AS stage
                  FROM {table} AS job
                 WHERE {is_queued}
                 ORDER BY job.{next_earliest_run_at}, job.{id}
                 LIMIT %(look_at)s) AS in_line
         WHERE coalesce(kind <> ALL (%(types)s::text[]), true)
           AND coalesce(stage <> ALL (%(stages)s::text[]), true)
         LIMIT %(most)s) AS unhandled
 GROUP BY kind
 ORDER BY kind
