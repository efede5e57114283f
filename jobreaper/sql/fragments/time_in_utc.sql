-- As JSON has a time in a session whose zone is UTC. One without a zone is the same in all of them.
CASE WHEN pg_typeof({time}) = 'timestamptz'::regtype
     THEN (to_jsonb({time} AT TIME ZONE 'UTC') #>> '{{}}') || '+00:00'
     ELSE to_jsonb({time}) #>> '{{}}' END
