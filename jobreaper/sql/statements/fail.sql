-- Fail: this attempt went wrong. No row back means that the lease was lost and nothing was written.
WITH policies AS MATERIALIZED ({policies}),
{attempt},
{failing}
SELECT data::text FROM event
