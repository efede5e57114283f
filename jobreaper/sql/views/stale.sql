-- Each running job: how long ago its last sign of life was, its limit, and its state. The view
-- stale_validation contains only those beyond twice their limit; if there are any, no reaper is
-- running.
CREATE OR REPLACE VIEW {view} AS
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
          FROM ({watched}) AS watched) AS monitor
 WHERE {shown}
