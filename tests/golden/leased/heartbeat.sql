-- Heartbeat: renew all leases that this process holds in one table.
--
-- A row that is locked, for example by the job's own transaction, is skipped; `held` then still
-- says that the lease stands. An epoch below that of the lease means that the claim is not
-- committed yet. A deadline needs no rule of its own, because no lease lasts beyond it; nor does a job
-- that gets nowhere, because none lasts beyond the time at which it has stalled.
WITH policies AS MATERIALIZED (
    -- One row per stage; the default policy has the stage ''.
    SELECT policy.stage,
           policy.lease_sec,
           policy.sla_factor,
           policy.max_runtime_sec * interval '1 second' AS max_runtime,
           policy.stall_after_sec * interval '1 second' AS stall_after,
           policy.backoff_ms,
           policy.on_expiry,
           policy.max_reaps,
           coalesce(policy.ttl_sec, NULL::float8) * interval '1 second' AS ttl
      FROM jsonb_to_recordset(%(policies)s::jsonb) AS policy (stage text, lease_sec float8, sla_factor float8, max_runtime_sec float8,
           stall_after_sec float8, backoff_ms bigint[], on_expiry text, max_reaps int, ttl_sec float8)
),
lease AS MATERIALIZED (
    SELECT *
      FROM unnest(%(ids)s::bigint[], %(epochs)s::bigint[], %(workers)s::text[])
           WITH ORDINALITY AS lease (id, epoch, worker, place)
),
reachable AS MATERIALIZED (
    SELECT job."id" AS id
      FROM "jobs" AS job
      JOIN lease ON lease.id = job."id" AND lease.epoch = job."lease_epoch"
                AND lease.worker = job."locked_by"::text
     WHERE job."status" = 'processing'
       FOR NO KEY UPDATE OF job SKIP LOCKED
),
renewed AS (
    UPDATE "jobs" AS job
       SET "last_heartbeat_at" = statement_timestamp(),
           "lease_expires_at" = -- An index contains the end of a lease, so to move it costs three times as much as to write the time
                                -- of the heartbeat alone. So a heartbeat sets the end somewhat further than needed, and then leaves it
                                -- alone until less than a lease is left. A lease never ends sooner than its length after a heartbeat.
                                (SELECT CASE WHEN job."lease_expires_at" BETWEEN ends.soonest AND ends.latest
                                             THEN job."lease_expires_at"
                                             ELSE ends.latest END
                                   FROM (SELECT make_interval(secs => LEAST(
                                                    GREATEST(policy.lease_sec,
                                                             coalesce(job."expected_duration_ms", 0) / 1000.0 * policy.sla_factor),
                                                    31622400)) AS length) AS its
                                  CROSS JOIN LATERAL (
                                        SELECT GREATEST('epoch', LEAST(
                                                   statement_timestamp()
                                                   + its.length,
                                                   job."deadline_at")) AS soonest,
                                               GREATEST('epoch', LEAST(
                                                   statement_timestamp()
                                                   + its.length + LEAST(its.length / 3, interval '5 minutes'),
                                                   job."deadline_at")) AS latest
                                        ) AS ends)
      FROM policies AS policy
     WHERE job."id" = ANY (ARRAY(SELECT id FROM reachable))
       AND policy.stage = CASE WHEN job."stage" IN (SELECT stage FROM policies) THEN job."stage" ELSE '' END
    RETURNING job."id" AS id, job."lease_expires_at" AS lease_expires_at
)
SELECT coalesce(job."status" = 'processing' AND job."lease_epoch" = lease.epoch
                    AND job."locked_by"::text = lease.worker
                OR job."lease_epoch" < lease.epoch, false) AS held,
       extract(epoch FROM renewed.lease_expires_at - statement_timestamp())::float8
           AS lease_remaining_sec,
       renewed.lease_expires_at,
       job."status" AS status,
       job."lease_epoch" AS epoch
  FROM lease
  LEFT JOIN renewed ON renewed.id = lease.id
  LEFT JOIN "jobs" AS job ON job."id" = lease.id
 WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
       -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
       -- an error, as of any row that cannot be written.
       (SELECT CASE WHEN count(*) = (SELECT count(*) FROM renewed) THEN true
                    ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM renewed))::text
                          || ' row(s)')::boolean END
          FROM (SELECT DISTINCT id FROM reachable) AS job)
 ORDER BY lease.place
