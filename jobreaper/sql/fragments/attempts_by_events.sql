(SELECT 1 + count(*)
   FROM job_events AS event
  WHERE event.job_id = {key_as_text}
    AND event."table" = {table_name}
    AND event.type = {requeued})
