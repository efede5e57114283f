-- Claims of stages with a max_running go one at a time, so that the next counts what this one
-- takes. A claimer that is frozen in between loses its session, and the lock with it.
SELECT CASE WHEN %(nested)s THEN '' ELSE
           set_config('lock_timeout', %(timeout)s, true)
           || set_config('idle_in_transaction_session_timeout', %(timeout)s, true) END,
       pg_advisory_xact_lock(hashtext('jobreaper claims'), hashtext(%(table)s))
