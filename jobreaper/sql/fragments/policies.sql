-- One row a stage; the default policy has the stage ''.
SELECT policy.stage,
       policy.lease_sec,
       policy.sla_factor,
       policy.max_runtime_sec * interval '1 second' AS max_runtime,
       policy.backoff_ms,
       policy.on_expiry,
       policy.max_reaps,
       coalesce(policy.ttl_sec, {table_ttl_sec}) * interval '1 second' AS ttl
  FROM jsonb_to_recordset(%(policies)s::jsonb) AS policy (
       stage text, lease_sec float8, sla_factor float8, max_runtime_sec float8,
       backoff_ms bigint[], on_expiry text, max_reaps int, ttl_sec float8)
