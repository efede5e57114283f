-- This attempt went wrong: back to the queue with backoff while attempts are left, failed
-- otherwise; false means that the lease was lost and nothing was written.
CREATE OR REPLACE FUNCTION {function}(
    job_id {id_type}, worker text, epoch bigint, code text, reason text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = {search_path}
SET TimeZone = {time_zone}
AS $body$
{ending}
$body$
