'locked_by', attempt.locked_by,
'stage', attempt.stage,
'attempt', attempt.attempt_count,
'epoch', attempt.lease_epoch,
'claimed_at', to_char(attempt.claimed_at AT TIME ZONE 'UTC', {iso_utc}),
'duration_ms', attempt.duration_ms
