-- A sign of life of a worker that has the job; false means that it no longer has it.
CREATE OR REPLACE FUNCTION {name}(p_job_id {id_type}, p_worker_id text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = {search_path}
SET TimeZone = {time_zone}
SET DateStyle = 'ISO'
AS $body$
BEGIN
    UPDATE {table} AS job
       SET {last_heartbeat_at} = statement_timestamp()
     WHERE job.{id} = p_job_id
       AND job.{locked_by}::text = p_worker_id
       AND {is_processing};
    RETURN FOUND;
END
$body$
