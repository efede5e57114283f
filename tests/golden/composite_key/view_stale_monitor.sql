-- Each running job: how long ago its last sign of life was, its limit, and its state. The view
-- stale_validation contains only those beyond twice their limit; if there are any, no reaper is
-- running.
CREATE OR REPLACE VIEW "public"."chores_stale_monitor" AS
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
          FROM (SELECT jsonb_build_array(-- A time as in JSON in a session with the time zone UTC. A time without a zone is the same in every
                       -- session.
                       CASE WHEN pg_typeof(job."at") = 'timestamptz'::regtype
                            THEN (to_jsonb(job."at" AT TIME ZONE 'UTC') #>> '{}') || '+00:00'
                            ELSE to_jsonb(job."at") #>> '{}' END, job."n")::text AS job_id,
                       NULL::text AS stage,
                       job."status"::text AS status,
                       NULL::text AS locked_by,
                       to_timestamp(extract(epoch FROM GREATEST(job."claimed_at"))) AS last_seen_at,
                       to_timestamp(extract(epoch FROM GREATEST(job."claimed_at"))) + limits.ttl AS ends_at,
                       limits.ttl AS allowed,
                       limits.ttl / 2 AS late_after,
                       NULL::text AS "progress",
                       NULL::timestamptz AS "progress_at",
                       NULL::timestamptz AS "stalls_at"
                  FROM "public"."chores" AS job
                  LEFT JOIN (SELECT make_interval(secs => 60) AS ttl) AS limits ON true
                 WHERE job."status" = 'processing') AS watched) AS monitor
 WHERE true
