-- Take the leases of at most n due jobs, or the lease of the job job_id, and return the jobs.
CREATE OR REPLACE FUNCTION {function}(
    worker text, n int DEFAULT 1, stages text[] DEFAULT NULL, job_id {id_type} DEFAULT NULL)
RETURNS SETOF {table}
LANGUAGE sql VOLATILE
SET search_path = {search_path}
SET TimeZone = {time_zone}
AS $body$
{statement}
$body$
