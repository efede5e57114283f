{function}.job_id := job.id::text;
{function}.outcome := CASE WHEN job.fail_code IS NULL THEN 'requeued' ELSE 'failed' END;
requeued := requeued + (job.fail_code IS NULL)::int;
failed := failed + (job.fail_code IS NOT NULL)::int;
RETURN NEXT;
