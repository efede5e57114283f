-- Each running job: how long ago its last sign of life was, its limit, and its state. The view
-- stale_validation contains only those beyond twice their limit; if there are any, no reaper is
-- running.
CREATE OR REPLACE VIEW "public"."executor_jobs_stale_monitor" AS
SELECT *
  FROM (SELECT watched.job_id,
               watched.stage,
               watched.status,
               watched.locked_by,
               watched.last_seen_at,
               CASE watched.last_seen_at
                    WHEN '-infinity' THEN 'infinity'
                    WHEN 'infinity' THEN '-infinity'
                    ELSE extract(epoch FROM now() - watched.last_seen_at)::float8 END AS age_sec,
               extract(epoch FROM watched.allowed)::float8 AS limit_sec,
               CASE WHEN watched.ends_at < now() THEN 'stale'
                    WHEN watched.ends_at IS NULL AND watched.allowed IS NULL THEN 'no limit'
                    WHEN watched.last_seen_at IS NULL THEN 'unknown'
                    WHEN watched.last_seen_at < now() - watched.late_after THEN 'late'
                    ELSE 'healthy' END AS state,
               watched.progress,
               watched.progress_at,
               watched.stalls_at
          FROM (SELECT job."id"::text AS job_id,
                       job."type"::text AS stage,
                       job."status"::text AS status,
                       job."locked_by"::text AS locked_by,
                       to_timestamp(extract(epoch FROM GREATEST(job."heartbeat_at", job."locked_at"))) AS last_seen_at,
                       to_timestamp(extract(epoch FROM GREATEST(job."heartbeat_at", job."locked_at"))) + limits.ttl AS ends_at,
                       limits.ttl AS allowed,
                       limits.ttl / 2 AS late_after,
                       NULL::text AS "progress",
                       NULL::timestamptz AS "progress_at",
                       NULL::timestamptz AS "stalls_at"
                  FROM "public"."executor_jobs" AS job
                  LEFT JOIN (SELECT * FROM (VALUES ('protect_document_v2', make_interval(secs => 300.0)), ('document.protected', make_interval(secs => 300.0)), ('build_artifact', make_interval(secs => 900.0)), ('run_tsa', make_interval(secs => 1800.0)), ('submit_anchor_polygon', make_interval(secs => 3600.0)), ('submit_anchor_bitcoin', make_interval(secs => 3600.0))) AS limits (stage, ttl)) AS limits ON limits.stage = job."type"::text
                 WHERE job."status" IN ('running', 'processing')) AS watched) AS monitor
 WHERE true
