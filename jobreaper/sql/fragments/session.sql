-- What makes a session more than its DSN, such as a search_path and a role: settings as JSON, each of
-- which the session can set. One that was never set and one that was set back are the same.

-- name: session_now
(SELECT jsonb_object_agg(name, coalesce(current_setting(name, true), ''))::text
   FROM unnest(%(session_settings)s::text[]) AS name)


-- name: in_session
NOT EXISTS (SELECT FROM jsonb_each_text(%(session)s::jsonb) AS own
             WHERE own.value <> coalesce(current_setting(own.key, true), ''))
