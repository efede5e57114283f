'locked_by', attempt.locked_by,
'stage', attempt.stage,
'attempt', attempt.attempt_count,
'epoch', attempt.lease_epoch,
'claimed_at', to_char(attempt.claimed_at AT TIME ZONE 'UTC', {iso_utc}),
{metered_details}
'queue_wait_ms', round(attempt.due_to_claim_ms + attempt.claim_to_start_ms)::bigint,
'duration_ms', attempt.duration_ms
