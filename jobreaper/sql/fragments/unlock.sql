{locked_by} = {no_locked_by},
{claimed_at} = NULL,
{lease_expires_at} = NULL,
{deadline_at} = NULL,
{dispatched_at} = NULL
