-- The session itself.

-- name: reach
-- Reach: whether the server answers.
SELECT true


-- name: session
-- What the session is beyond its DSN.
SELECT {session_now}


-- name: move
-- Make the session another one until the transaction ends.
SELECT set_config(own.key, own.value, true) FROM jsonb_each_text(%(session)s::jsonb) AS own


-- name: move_from_home
-- The same, unless the session was moved away from its home already.
SELECT set_config(own.key, own.value, true)
  FROM jsonb_each_text(%(session)s::jsonb) AS own
 WHERE NOT EXISTS (SELECT FROM jsonb_each_text(%(home)s::jsonb) AS own
                    WHERE own.value <> coalesce(current_setting(own.key, true), ''))


-- name: limit
-- Let the statements that are sent with this one, in a transaction of their own, neither wait nor run
-- long. transaction_timeout (PostgreSQL 17) is off: it would end the session.
SELECT set_config('lock_timeout', %(lock_timeout)s, true),
       set_config('statement_timeout', %(statement_timeout)s, true),
       CASE WHEN current_setting('transaction_timeout', true) <> '0'
            THEN set_config('transaction_timeout', '0', true) END


-- name: set_timeouts
-- Set the timeouts until the transaction ends, and return the previous values, and what the session
-- is. Where the transaction is our own, transaction_timeout (PostgreSQL 17) is off: it would end the
-- session.
SELECT current_setting('lock_timeout'),
       current_setting('statement_timeout'),
       current_setting('idle_in_transaction_session_timeout'),
       {session_now},
       set_config('lock_timeout', %(lock_timeout)s, true),
       set_config('statement_timeout', %(statement_timeout)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, true),
       CASE WHEN NOT %(nested)s AND current_setting('transaction_timeout', true) <> '0'
            THEN set_config('transaction_timeout', '0', true) END


-- name: write_as_read
-- Let the session write times and intervals as the driver reads them.
SELECT set_config('DateStyle', 'ISO', false), set_config('IntervalStyle', 'postgres', false)
