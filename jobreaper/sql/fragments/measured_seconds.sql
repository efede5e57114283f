CASE jsonb_typeof(data -> 'details' -> 'duration_ms')
     WHEN 'number' THEN (data -> 'details' ->> 'duration_ms')::float8 / 1000
     ELSE 0 END
