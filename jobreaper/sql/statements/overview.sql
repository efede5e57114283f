-- How everything stands, for people who look: bounded, however large the tables are.

-- name: count_of_status
-- How many jobs have a status, counted up to %(most)s.
SELECT count(*) FROM (SELECT FROM {table} AS job WHERE {has_status} LIMIT %(most)s) AS job


-- name: stuck
-- The jobs of a table with leases that stand still: those whose lease ran out, those that run without
-- one, and those that could have been claimed for longer than %(overdue_sec)s seconds. As in
-- due.sql, jobs that never had a time are a range of their own, and nothing is ordered only by the key.
SELECT job.{id}::text AS key,
       job.{id} AS id,
       'expired' AS kind,
       extract(epoch FROM statement_timestamp() - job.{lease_expires_at})::float8 AS age_sec{key_as_read}
  FROM (SELECT *
          FROM {table} AS job
         WHERE {is_processing}
           AND job.{lease_expires_at} < statement_timestamp()
         ORDER BY job.{lease_expires_at}
         LIMIT %(most)s) AS job
 UNION ALL
SELECT job.{id}::text, job.{id}, 'no_lease',
       extract(epoch FROM statement_timestamp()
                          - GREATEST(job.{last_heartbeat_at}, job.{claimed_at}))::float8{key_as_read}
  FROM (SELECT *
          FROM {table} AS job
         WHERE {is_processing}
           AND job.{lease_expires_at} IS NULL
         ORDER BY job.{lease_expires_at}
         LIMIT %(most)s) AS job
 UNION ALL
SELECT job.{id}::text, job.{id}, 'overdue',
       extract(epoch FROM statement_timestamp() - {waiting_since})::float8{key_as_read}
  FROM (SELECT *
          FROM {table} AS job
         WHERE {is_queued}
           AND job.{next_earliest_run_at}
               < statement_timestamp() - %(overdue_sec)s * interval '1 second'
         ORDER BY {in_line}
         LIMIT %(most)s) AS job
 WHERE {waiting_since} < statement_timestamp() - %(overdue_sec)s * interval '1 second'
 UNION ALL
SELECT job.{id}::text, job.{id}, 'overdue',
       extract(epoch FROM statement_timestamp() - {waiting_since})::float8{key_as_read}
  FROM (SELECT *
          FROM {table} AS job
         WHERE {is_queued}
           AND job.{next_earliest_run_at} IS NULL
         ORDER BY {in_line}
         LIMIT %(most)s) AS job
 WHERE {waiting_since} < statement_timestamp() - %(overdue_sec)s * interval '1 second'


-- name: series
-- What ended in each of the last %(buckets)s steps of time, oldest first. In each step, no more than
-- the first %(most)s events are read; if there are more, the rest is taken to be like them.
SELECT extract(epoch FROM bucket.began_at)::float8 AS began_at,
       sample.read,
       sample.finished,
       sample.retried,
       sample.failed,
       sample.requeued,
       sample.waited_ms,
       sample.waited_longest_ms,
       CASE WHEN sample.read >= %(most)s AND sample.until > bucket.began_at
            THEN GREATEST(
                extract(epoch FROM LEAST(bucket.began_at + step.length, statement_timestamp())
                                   - bucket.began_at)
                / extract(epoch FROM sample.until - bucket.began_at), 1)
            ELSE 1 END::float8 AS stretch
  FROM (SELECT %(step_sec)s * interval '1 second' AS length) AS step
 CROSS JOIN LATERAL generate_series(
           date_bin(step.length, statement_timestamp(), '2000-01-01 00:00+00')
               - (%(buckets)s::int - 1) * step.length,
           statement_timestamp(),
           step.length) AS bucket (began_at)
 CROSS JOIN LATERAL (
       SELECT count(*) AS read,
              count(*) FILTER (WHERE event.type = {job_finished}) AS finished,
              count(*) FILTER (WHERE event.type = {job_retried}) AS retried,
              count(*) FILTER (WHERE event.type IN ({job_failed}, {reaper_failed_timeout},
                  {reaper_failed_poison}, {reaper_failed_deadline},
                  {reaper_failed_stalled})) AS failed,
              count(*) FILTER (WHERE event.type IN ({reaper_requeued}, {job_worker_lost})) AS requeued,
              avg(event.waited_ms)::float8 AS waited_ms,
              percentile_disc(0.95) WITHIN GROUP (ORDER BY event.waited_ms)::float8
                  AS waited_longest_ms,
              max(event.at) AS until
         FROM (SELECT type, at,
                      CASE WHEN jsonb_typeof(data #> '{{details,queue_wait_ms}}') = 'number'
                           THEN (data #>> '{{details,queue_wait_ms}}')::numeric END AS waited_ms
                 FROM {job_events}
                WHERE at >= bucket.began_at
                  AND at < bucket.began_at + step.length
                ORDER BY at
                LIMIT %(most)s) AS event) AS sample
 ORDER BY bucket.began_at


-- name: passes_by_time
-- The passes of the last %(buckets)s steps of time, oldest first.
SELECT extract(epoch FROM date_bin(%(step_sec)s * interval '1 second', started_at,
                                   '2000-01-01 00:00+00'))::float8 AS began_at,
       count(*),
       sum(requeued)::bigint,
       sum(failed)::bigint,
       count(*) FILTER (WHERE held),
       count(*) FILTER (WHERE error IS NOT NULL),
       max(duration_ms)
  FROM (SELECT *
          FROM {jobreaper_passes}
         WHERE started_at > statement_timestamp() - %(buckets)s * %(step_sec)s * interval '1 second'
         ORDER BY started_at DESC
         LIMIT %(most)s) AS pass
 GROUP BY 1
 ORDER BY 1


-- name: last_pass
-- The last pass, and the database's time.
SELECT statement_timestamp(), pass.started_at, pass.duration_ms, pass.reaper, pass.trigger,
       pass.requeued, pass.failed, pass.held_reason, pass.error
  FROM (SELECT) AS now
  LEFT JOIN (SELECT * FROM {jobreaper_passes} ORDER BY started_at DESC LIMIT 1) AS pass ON true


-- name: stages_in_line
-- The stages of the queued jobs that are next in line, and how many of those each has.
SELECT coalesce(in_line.stage, ''), count(*)
  FROM (SELECT {stage_of_row} AS stage
          FROM {table} AS job
         WHERE {is_queued}
         ORDER BY {in_line}
         LIMIT %(most)s) AS in_line
 GROUP BY 1
 ORDER BY 2 DESC
 LIMIT 50
