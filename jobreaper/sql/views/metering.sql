-- Runs that workers ended, failures among them and the seconds they took, by table, org, type and
-- UTC day. JobEvent.objects.metering() is the same with times that an index serves.
CREATE OR REPLACE VIEW jobreaper_metering AS
SELECT (at AT TIME ZONE 'UTC')::date AS day,
       "table",
       data -> 'details' ->> 'org_id' AS org_id,
       coalesce(data -> 'details' ->> 'type', data -> 'details' ->> 'stage') AS type,
       count(*) AS runs,
       count(*) FILTER (WHERE type IN ({job_retried}, {job_failed})) AS failures,
       sum({measured_seconds}) AS seconds
  FROM job_events
 WHERE type IN ({job_finished}, {job_retried}, {job_failed})
 GROUP BY 1, 2, 3, 4
