-- A time as in JSON in a session with the time zone UTC. A time without a zone is the same in every
-- session.
CASE WHEN pg_typeof({time}) = 'timestamptz'::regtype
     THEN (to_jsonb({time} AT TIME ZONE 'UTC') #>> '{{}}') || '+00:00'
     ELSE to_jsonb({time}) #>> '{{}}' END
