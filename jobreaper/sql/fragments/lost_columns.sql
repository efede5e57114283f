job.{id} AS id,
job.{stage} AS stage,
job.{locked_by} AS locked_by,
{attempts_of_job} AS attempt_count,
{max_attempts_of_job} AS max_attempts,
coalesce(job.{reap_count}, 0) AS reap_count,
coalesce(job.{lease_epoch}, 0) AS lease_epoch,
job.{lease_expires_at} AS lease_expires_at,
job.{deadline_at} AS deadline_at
