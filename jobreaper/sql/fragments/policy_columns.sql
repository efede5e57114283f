stage text, lease_sec float8, sla_factor float8, max_runtime_sec float8,
backoff_ms bigint[], on_expiry text, max_reaps int, ttl_sec float8
