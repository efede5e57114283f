-- The policies of the stages, and the wait that one sets.

-- name: policies
-- One row per stage; the default policy has the stage ''.
SELECT policy.stage,
       policy.lease_sec,
       policy.sla_factor,
       policy.max_runtime_sec * interval '1 second' AS max_runtime,
       policy.stall_after_sec * interval '1 second' AS stall_after,
       policy.backoff_ms,
       policy.on_expiry,
       policy.max_reaps,
       coalesce(policy.ttl_sec, {table_ttl_sec}) * interval '1 second' AS ttl
  FROM {policy_rows}


-- name: policy_of_named
-- What a claim needs of the policy of a job's stage; the default policy has the stage ''.
SELECT of_stage.lease_sec,
       of_stage.sla_factor,
       of_stage.max_runtime_sec * interval '1 second' AS max_runtime,
       of_stage.stall_after_sec * interval '1 second' AS stall_after
  FROM jsonb_to_record(coalesce(%(policy_by_stage)s::jsonb -> named.stage,
                                %(policy_by_stage)s::jsonb -> ''))
       AS of_stage (lease_sec float8, sla_factor float8,
                    max_runtime_sec float8, stall_after_sec float8)


-- name: policy_columns
stage text, lease_sec float8, sla_factor float8, max_runtime_sec float8,
stall_after_sec float8, backoff_ms bigint[], on_expiry text, max_reaps int, ttl_sec float8


-- name: backoff
policy.backoff_ms[LEAST(GREATEST(job.attempt_count, 1), cardinality(policy.backoff_ms))]
    * interval '1 millisecond'
