-- Retake: the jobs that an earlier try of a claim took whose answer was lost. The mark
-- distinguishes them from other jobs that this worker has claimed.
SELECT "job"."progress",
       "job"."progress_at",
       "job"."stalls_at",
       "job"."status",
       "job"."stage",
       "job"."locked_by",
       "job"."claimed_at",
       "job"."lease_expires_at",
       "job"."last_heartbeat_at",
       "job"."lease_epoch",
       "job"."attempt_count",
       "job"."max_attempts",
       "job"."reap_count",
       "job"."next_earliest_run_at",
       "job"."expected_duration_ms",
       "job"."deadline_at",
       "job"."finished_at",
       "job"."dispatched_at",
       "job"."fail_code",
       "job"."fail_reason",
       "job"."id",
       "job"."type",
       "job"."priority",
       "job"."queue",
       "job"."org_id",
       "job"."payload",
       "job"."result",
       "job"."dedupe_key",
       "job"."traceparent",
       "job"."created_at",
       "job"."updated_at",
       extract(epoch FROM job."lease_expires_at" - statement_timestamp())::float8
           AS lease_remaining_sec,
       (SELECT jsonb_object_agg(name, coalesce(current_setting(name, true), ''))::text
          FROM unnest(%(session_settings)s::text[]) AS name) AS session
  FROM "jobreaper_jobs" AS job
 WHERE job."status" = 'processing'
   AND job."lease_expires_at" >= statement_timestamp()
   AND job."locked_by"::text = %(worker)s
   AND job."claimed_at" >= statement_timestamp() - make_interval(secs => %(since_sec)s)
   AND job."claimed_at" - job."last_heartbeat_at" = %(mark_us)s * interval '1 microsecond'
 ORDER BY job."priority" DESC NULLS LAST, job."next_earliest_run_at", job."id"
