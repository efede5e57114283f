-- A sign of life of a worker that has the job; false means that it no longer has it.
CREATE OR REPLACE FUNCTION "public"."update_job_heartbeat"(p_job_id uuid, p_worker_id text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = "pg_catalog", "pg_temp"
SET TimeZone = 'UTC'
SET DateStyle = 'ISO'
AS $body$
BEGIN
    UPDATE "public"."executor_jobs" AS job
       SET "heartbeat_at" = statement_timestamp()
     WHERE job."id" = p_job_id
       AND job."locked_by"::text = p_worker_id
       AND job."status" IN ('running', 'processing');
    RETURN FOUND;
END
$body$
