-- The rows of `total` with their stage as a label. When all names of a table are given, the stages
-- without one share one: a stage for each job would be a series for each job. Until then a stage
-- without a name has no label: which of the two it will be is not known yet.
SELECT total.*,
       CASE WHEN named.id IS NOT NULL OR total.stage = ANY (%(known_stages)s::text[])
            THEN total.stage
            WHEN last_named.id IS NOT NULL
            THEN {other_stage}
       END AS label
  FROM total
  LEFT JOIN jobreaper_stages AS named
    ON named."table" = total."table"
   AND named.stage = total.stage
  LEFT JOIN jobreaper_stages AS last_named
    ON last_named."table" = total."table"
   AND last_named.place = {most_stages}
