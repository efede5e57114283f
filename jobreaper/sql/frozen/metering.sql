-- Runs that workers ended, failures among them and the seconds they took, by table, org, type and
-- UTC day. JobEvent.objects.metering() is the same with times that an index serves.
CREATE OR REPLACE VIEW jobreaper_metering AS
SELECT (at AT TIME ZONE 'UTC')::date AS day,
       "table",
       data -> 'details' ->> 'org_id' AS org_id,
       coalesce(data -> 'details' ->> 'type', data -> 'details' ->> 'stage') AS type,
       count(*) AS runs,
       count(*) FILTER (WHERE type IN ('job:retried', 'job:failed')) AS failures,
       sum(CASE jsonb_typeof(data -> 'details' -> 'duration_ms')
                WHEN 'number' THEN (data -> 'details' ->> 'duration_ms')::float8 / 1000
                ELSE 0 END) AS seconds
  FROM job_events
 WHERE type IN ('job:finished', 'job:retried', 'job:failed')
 GROUP BY 1, 2, 3, 4
