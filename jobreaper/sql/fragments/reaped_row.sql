{function}.job_id := taken.id::text;
{function}.outcome := CASE WHEN taken.fail_code IS NULL THEN 'requeued' ELSE 'failed' END;
requeued := requeued + (taken.fail_code IS NULL)::int;
failed := failed + (taken.fail_code IS NOT NULL)::int;
RETURN NEXT;
