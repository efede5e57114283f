-- Finish: the work is done. No row back means that the lease was lost and nothing was written.
WITH {attempt},
{finished}
SELECT data::text FROM event
