-- Which jobs were taken from which worker, when and why, newest first.
CREATE OR REPLACE VIEW {view} AS
SELECT event.at,
       event.job_id,
       event.type,
       event.data #>> '{{details,stage}}' AS stage,
       event.data #>> '{{details,locked_by}}' AS locked_by,
       event.data #>> '{{details,reason}}' AS reason,
       event.data #>> '{{details,note}}' AS note,
       (event.data #>> '{{details,attempt}}')::int AS attempt,
       (event.data #>> '{{details,overdue_ms}}')::bigint AS overdue_ms,
       event.data #>> '{{details,reaper}}' AS reaper
  FROM {job_events} AS event
 WHERE event."table" = {table_name}
   AND event.type IN ({reaper_requeued}, {reaper_failed_timeout}, {reaper_failed_poison},
                      {reaper_failed_deadline}, {reaper_failed_stalled}, {job_worker_lost})
 ORDER BY event.id DESC
