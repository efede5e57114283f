-- The rows of `total` with their stage as a label. Once all names of a table are assigned, stages
-- without a name share one, so that the number of series is limited. Until then, a stage without a
-- name has no label, because its label is not known yet.
SELECT total.*,
       CASE WHEN named.id IS NOT NULL OR total.stage = ANY (%(known_stages)s::text[])
            THEN total.stage
            WHEN last_named.id IS NOT NULL
            THEN {other_stage}
       END AS label
  FROM total
  LEFT JOIN {jobreaper_stages} AS named
    ON named."table" = total."table"
   AND named.stage = total.stage
  LEFT JOIN {jobreaper_stages} AS last_named
    ON last_named."table" = total."table"
   AND last_named.place = {most_stages}
