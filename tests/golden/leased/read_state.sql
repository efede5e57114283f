-- Also whether this is the session of the lease; in another one, it may be that of another job.
SELECT NOT EXISTS (SELECT FROM jsonb_each_text(%(session)s::jsonb) AS own
                    WHERE own.value <> coalesce(current_setting(own.key, true), '')),
       (SELECT state::text
          FROM jobreaper_states
         WHERE "table" = 'jobs'
           AND job_id = (%(id)s::bigint)::text)
