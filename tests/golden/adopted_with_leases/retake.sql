-- Retake: the jobs that an earlier try of a claim took whose answer was lost. The mark
-- distinguishes them from other jobs that this worker has claimed.
SELECT "job"."Number",
       "job"."State",
       "job"."kind",
       "job"."worker",
       "job"."started",
       "job"."leased until",
       "job"."seen",
       "job"."fence",
       "job"."tries",
       "job"."tries_allowed",
       "job"."losses",
       "job"."not_before",
       "job"."expected_ms",
       "job"."hard_end",
       "job"."ended",
       "job"."sent",
       "job"."error_code",
       "job"."error_text",
       extract(epoch FROM job."leased until" - statement_timestamp())::float8
           AS lease_remaining_sec,
       (SELECT jsonb_object_agg(name, coalesce(current_setting(name, true), ''))::text
          FROM unnest(%(session_settings)s::text[]) AS name) AS session
  FROM "office"."Errands" AS job
 WHERE job."State" IN ('running', 'finishing')
   AND job."leased until" >= statement_timestamp()
   AND job."worker"::text = %(worker)s
   AND job."started" >= statement_timestamp() - make_interval(secs => %(since_sec)s)
   AND job."started" - job."seen" = %(mark_us)s * interval '1 microsecond'
 ORDER BY job."not_before", job."Number"
