-- One row a stage; the default policy has the stage ''.
SELECT policy.stage,
       policy.lease_sec,
       policy.sla_factor,
       policy.max_runtime_sec * interval '1 second' AS max_runtime,
       policy.backoff_ms,
       policy.on_expiry,
       policy.max_reaps,
       coalesce(policy.ttl_sec, {table_ttl_sec}) * interval '1 second' AS ttl
  FROM {policy_rows}
