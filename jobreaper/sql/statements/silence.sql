-- Silence: which leases a pass may take, those of workers that fell silent by `silent_by`; if not all,
-- why; and up to when workers fell silent together, if that is seen for the first time.
--
-- Workers that were silent when a common silence was first seen have one grace from then on, and not
-- another one after it. So however often workers fall silent, each lease is taken in the end. Those
-- that were silent when the server came up have had theirs since then.
WITH
up (at) AS (
    SELECT CASE WHEN %(up_sec)s::float8 >= %(grace_sec)s
                THEN statement_timestamp() - make_interval(secs => %(up_sec)s::float8) END
),
grace (known_until, over_until, seen_at) AS (
    SELECT GREATEST(max(silent_until), (SELECT at FROM up), '-infinity'),
           GREATEST(max(silent_until) FILTER (WHERE NOT is_running),
                    (SELECT at FROM up),
                    '-infinity'),
           max(seen_at) FILTER (WHERE is_running)
      FROM (SELECT silent_until,
                   ended.at AS seen_at,
                   ended.at > statement_timestamp() - make_interval(secs => %(grace_sec)s)
                       AS is_running
              FROM {jobreaper_passes}
             CROSS JOIN LATERAL (
                   SELECT started_at + duration_ms * interval '1 millisecond' AS at
                   ) AS ended
             WHERE silent_until IS NOT NULL
               AND started_at > statement_timestamp() - 2 * {recently}) AS earlier
),
seen (worker, seen_at, pace_sec, is_due) AS (
    {seen}
),
{workers_seen},
{common_silence},
still (workers) AS (
    SELECT count(*)
      FROM workers, grace
     WHERE is_silent
       AND workers.seen_at > grace.over_until
       AND workers.seen_at <= grace.known_until
)
SELECT CASE WHEN common.workers > 0 OR still.workers > 0
            THEN grace.over_until
            ELSE 'infinity' END::text AS silent_by,
       CASE WHEN common.workers > 0 THEN
                format('%%s of %%s workers fell silent within %%s s of each other, which was first '
                       'seen now; they have %%s s to beat again (RECOVERY_GRACE_SEC)',
                       common.workers, common.workers + common.well,
                       %(heartbeat_sec)s::float8, %(grace_sec)s::float8)
            WHEN still.workers > 0 THEN
                format('%%s workers that fell silent together are silent still, which was first '
                       'seen %%s s ago; they have until %%s s after that to beat again '
                       '(RECOVERY_GRACE_SEC)',
                       still.workers,
                       round(extract(epoch FROM statement_timestamp() - grace.seen_at)),
                       %(grace_sec)s::float8)
            END AS reason,
       CASE WHEN common.workers > 0
            THEN (SELECT max(seen_at) FROM workers WHERE is_silent) END AS silent_until
  FROM grace
 CROSS JOIN still
  LEFT JOIN common ON true
