-- Each running job: how long ago its last sign of life was, its limit, and its state. The view
-- stale_validation contains only those beyond twice their limit; if there are any, no reaper is
-- running.
CREATE OR REPLACE VIEW "public"."jobs_stale_validation" AS
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
          FROM (WITH policies AS MATERIALIZED (
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
                      FROM jsonb_to_recordset('[{"stage": "", "lease_sec": 300.0, "sla_factor": 0.0, "max_runtime_sec": null, "stall_after_sec": null, "backoff_ms": [30000, 120000, 600000], "on_expiry": "requeue", "max_reaps": null, "ttl_sec": null, "max_running": null, "queue": null, "priority": null}, {"stage": "clip", "lease_sec": 300.0, "sla_factor": 6.0, "max_runtime_sec": 7200.0, "stall_after_sec": null, "backoff_ms": [30000, 120000, 600000], "on_expiry": "requeue", "max_reaps": null, "ttl_sec": null, "max_running": null, "queue": null, "priority": null}, {"stage": "asr", "lease_sec": 300.0, "sla_factor": 12.0, "max_runtime_sec": null, "stall_after_sec": null, "backoff_ms": [30000, 120000, 600000], "on_expiry": "requeue", "max_reaps": null, "ttl_sec": null, "max_running": null, "queue": null, "priority": null}, {"stage": "burnin", "lease_sec": 300.0, "sla_factor": 8.0, "max_runtime_sec": null, "stall_after_sec": null, "backoff_ms": [30000, 120000, 600000], "on_expiry": "requeue", "max_reaps": null, "ttl_sec": null, "max_running": null, "queue": null, "priority": null}]'::jsonb) AS policy (stage text, lease_sec float8, sla_factor float8, max_runtime_sec float8,
                           stall_after_sec float8, backoff_ms bigint[], on_expiry text, max_reaps int, ttl_sec float8)
                )
                SELECT job."id"::text AS job_id,
                       job."stage" AS stage,
                       job."status"::text AS status,
                       job."locked_by" AS locked_by,
                       seen.at AS last_seen_at,
                       coalesce(job."lease_expires_at", seen.at + policy.ttl) AS ends_at,
                       CASE WHEN isfinite(job."lease_expires_at") AND isfinite(seen.at)
                            THEN job."lease_expires_at" - seen.at ELSE policy.ttl END AS allowed,
                       make_interval(secs => 45.0) AS late_after,
                       NULL::text AS "progress",
                       NULL::timestamptz AS "progress_at",
                       NULL::timestamptz AS "stalls_at"
                  FROM "public"."jobs" AS job
                  JOIN policies AS policy ON policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
                 CROSS JOIN LATERAL (
                       SELECT GREATEST(job."last_heartbeat_at", job."claimed_at") AS at
                       ) AS seen
                 WHERE job."status" = 'processing') AS watched) AS monitor
 WHERE age_sec > 2 * limit_sec
