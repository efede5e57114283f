-- A job that was failed and then requeued by hand starts afresh.
(SELECT 1 + count(*)::int
   FROM job_events AS event
  WHERE event.job_id = {key_as_text}
    AND event."table" = {table_name}
    AND event.type = {reaper_requeued}
    AND event.id > coalesce((SELECT max(ended.id)
                               FROM job_events AS ended
                              WHERE ended.job_id = {key_as_text}
                                AND ended."table" = {table_name}
                                AND ended.type = {reaper_failed_timeout}), 0))
