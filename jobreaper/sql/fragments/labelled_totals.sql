-- The rows of `total` with their stage as a label. Beyond the stages that have a policy, the first
-- few that were counted in a table keep their name, in the order of their oldest row, and all
-- others share one: a stage for each job would be a series for each job.
SELECT id, name, "table", count, microseconds, last_at,
       CASE WHEN is_known
                 OR dense_rank() OVER (PARTITION BY "table", is_known ORDER BY first_id)
                    <= {most_stages}
            THEN stage ELSE {other_stage} END AS stage
  FROM (SELECT total.*,
               stage = ANY (%(known_stages)s::text[]) AS is_known,
               min(id) OVER (PARTITION BY "table", stage) AS first_id
          FROM total) AS staged
