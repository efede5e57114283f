-- Which jobs were taken from which worker, when and why, newest first.
CREATE OR REPLACE VIEW "public"."chores_reclaim_history" AS
SELECT event.at,
       event.job_id,
       event.type,
       event.data #>> '{details,stage}' AS stage,
       event.data #>> '{details,locked_by}' AS locked_by,
       event.data #>> '{details,reason}' AS reason,
       event.data #>> '{details,note}' AS note,
       (event.data #>> '{details,attempt}')::int AS attempt,
       (event.data #>> '{details,overdue_ms}')::bigint AS overdue_ms,
       event.data #>> '{details,reaper}' AS reaper
  FROM "public"."job_events" AS event
 WHERE event."table" = 'chores'
   AND event.type IN ('reaper:requeued', 'reaper:failed(timeout)', 'reaper:failed(poison)',
                      'reaper:failed(deadline)', 'reaper:failed(stalled)', 'job:worker_lost')
 ORDER BY event.id DESC
