{key_of_verdict}, stage, {lease_expired}::text, CASE WHEN NOT requeues THEN {timeout} END,
       locked_by, attempt_count, 0, overdue_ms, CASE WHEN requeues THEN 0 END
