job.{id} AS id,
job.{locked_by} AS locked_by,
job.{stage} AS stage,
{attempts_of_job} AS attempt_count,
{max_attempts_of_job} AS max_attempts,
job.{lease_epoch} AS lease_epoch,
job.{claimed_at} AS claimed_at,
{metered_columns}
CASE WHEN isfinite(job.{next_earliest_run_at}) AND isfinite(job.{claimed_at}) THEN
    GREATEST(extract(epoch FROM job.{claimed_at} - job.{next_earliest_run_at}) * 1000, 0) END
    AS due_to_claim_ms
