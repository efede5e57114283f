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
    SELECT job."Number" AS id
      FROM "office"."Errands" AS job
      JOIN lease ON lease.id = job."Number" AND lease.epoch = job."fence"
                AND lease.worker = job."worker"::text
     WHERE job."State" IN ('running', 'finishing')
       FOR NO KEY UPDATE OF job SKIP LOCKED
),
renewed AS (
    UPDATE "office"."Errands" AS job
       SET "seen" = statement_timestamp(),
           "leased until" = -- An index contains the end of a lease, so to move it costs three times as much as to write the time
                            -- of the heartbeat alone. So a heartbeat sets the end somewhat further than needed, and then leaves it
                            -- alone until less than a lease is left. A lease never ends sooner than its length after a heartbeat.
                            (SELECT CASE WHEN job."leased until" BETWEEN ends.soonest AND ends.latest
                                         THEN job."leased until"
                                         ELSE ends.latest END
                               FROM (SELECT make_interval(secs => LEAST(
                                                GREATEST(policy.lease_sec,
                                                         coalesce(job."expected_ms", 0) / 1000.0 * policy.sla_factor),
                                                31622400)) AS length) AS its
                              CROSS JOIN LATERAL (
                                    SELECT GREATEST('epoch', LEAST(
                                               statement_timestamp()
                                               + its.length,
                                               job."hard_end")) AS soonest,
                                           GREATEST('epoch', LEAST(
                                               statement_timestamp()
                                               + its.length + LEAST(its.length / 3, interval '5 minutes'),
                                               job."hard_end")) AS latest
                                    ) AS ends)
      FROM policies AS policy
     WHERE job."Number" = ANY (ARRAY(SELECT id FROM reachable))
       AND policy.stage = CASE WHEN job."kind"::text IN (SELECT stage FROM policies) THEN job."kind"::text ELSE '' END
    RETURNING job."Number" AS id, job."leased until" AS lease_expires_at
)
SELECT coalesce(job."State" IN ('running', 'finishing') AND job."fence" = lease.epoch
                    AND job."worker"::text = lease.worker
                OR job."fence" < lease.epoch, false) AS held,
       extract(epoch FROM renewed.lease_expires_at - statement_timestamp())::float8
           AS lease_remaining_sec,
       renewed.lease_expires_at,
       job."State" AS status,
       job."fence" AS epoch
  FROM lease
  LEFT JOIN renewed ON renewed.id = lease.id
  LEFT JOIN "office"."Errands" AS job ON job."Number" = lease.id
 WHERE -- A trigger that returns NULL keeps a row from being written without an error, and a rule may. Such a
       -- row would be first in line again, its job would count as finished, its lease as lost. So it becomes
       -- an error, as of any row that cannot be written.
       (SELECT CASE WHEN count(*) = (SELECT count(*) FROM renewed) THEN true
                    ELSE ('a trigger or a rule suppressed the write of ' || (count(*) - (SELECT count(*) FROM renewed))::text
                          || ' row(s)')::boolean END
          FROM (SELECT DISTINCT id FROM reachable) AS job)
 ORDER BY lease.place
