-- The next due jobs behind a long line of others: paused ones, and those that this worker does not run.

-- name: looking
-- A claim looks along the line for a moment. After that, any job that is not for it takes the place of
-- one and ends the look. It is left where it is, and the claim by kind finds the rest.
looking AS MATERIALIZED (
    SELECT clock_timestamp() + {look_ms} * interval '1 millisecond' AS until
),


-- name: wanted_or_late
({wanted}
 OR clock_timestamp() >= (SELECT until FROM looking))


-- name: and_is_wanted
,
CASE WHEN clock_timestamp() < (SELECT until FROM looking) THEN true
     ELSE {wanted} END AS is_wanted


-- name: look
-- One row in any case: if no job is claimed, a row without a job says how the look ended.
(SELECT count(*) > 0 AS is_cut FROM next WHERE is_wanted IS NOT TRUE) AS look
LEFT JOIN


-- name: due_by_kind
-- The next due jobs, in the same order, without reading those of other kinds. A kind is a stage with
-- a type, a queue and a priority, as far as the table has them. The index by kind finds the kinds
-- in line one by one, and then the first jobs of each that is wanted. Some more than are needed,
-- since other claims may be about to take the same.
{left_out},
kinds AS MATERIALIZED (
    WITH RECURSIVE present AS (
        (SELECT {kind_columns}
           FROM {table} AS job
          WHERE {is_queued}
          ORDER BY {kind}
          LIMIT 1)
         UNION ALL
        SELECT following.*
          FROM present
         CROSS JOIN LATERAL (
               SELECT {kind_columns}
                 FROM {table} AS job
                WHERE {is_queued}
                  AND ({kind}) > ({kind_of_present})
                ORDER BY {kind}
                LIMIT 1) AS following
    )
    SELECT *
      FROM present AS job
     WHERE {wanted_kind}
),
first_of_kinds AS MATERIALIZED (
    SELECT job.id
      FROM kinds
     CROSS JOIN LATERAL (
           {of_kind}
           ) AS job
     ORDER BY {by_priority_of_kind}job.run_at, job.id
     LIMIT 2 * %(n)s + {spare}
),
{picked} AS MATERIALIZED (
    SELECT job.{id} AS id
      FROM {table} AS job
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM first_of_kinds))
       AND {is_queued}
       AND (job.{next_earliest_run_at} IS NULL
            OR job.{next_earliest_run_at} <= statement_timestamp())
       AND {wanted}
     ORDER BY {by_priority}{run_at}, job.{id}
     LIMIT %(n)s
       FOR NO KEY UPDATE SKIP LOCKED
)


-- name: due_of_kind
(SELECT {run_at} AS run_at, job.{id} AS id
   FROM {table} AS job
  WHERE {is_queued}
    AND {is_of_kind}
    AND {is_due}
    AND {is_not_refused}
  ORDER BY {run_at}, job.{id}
  LIMIT 2 * %(n)s + {spare})
