-- Set the timeouts until the transaction ends, and return what they were.
SELECT current_setting('lock_timeout'),
       current_setting('statement_timeout'),
       current_setting('idle_in_transaction_session_timeout'),
       set_config('lock_timeout', %(lock_timeout)s, true),
       set_config('statement_timeout', %(statement_timeout)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, true)
