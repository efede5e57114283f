{key_of_verdict} AS id, stage, {lease_expired}::text AS reason,
       CASE WHEN NOT requeues THEN {timeout} END AS fail_code, locked_by, attempt_count,
       0 AS lease_epoch, overdue_ms, CASE WHEN requeues THEN 0 END AS run_again_in_ms
