-- Totals: the counts so far.
WITH total AS (SELECT * FROM jobreaper_totals)
SELECT name, "table", label,
       LEAST(sum(count), 9223372036854775807)::bigint,
       LEAST(sum(microseconds), 9223372036854775807)::bigint,
       extract(epoch FROM max(last_at))::float8
  FROM (-- The rows of `total` with their stage as a label. Once all names of a table are assigned, stages
        -- without a name share one, so that the number of series is limited. Until then, a stage without a
        -- name has no label, because its label is not known yet.
        SELECT total.*,
               CASE WHEN named.id IS NOT NULL OR total.stage = ANY (%(known_stages)s::text[])
                    THEN total.stage
                    WHEN last_named.id IS NOT NULL
                    THEN 'other'
               END AS label
          FROM total
          LEFT JOIN jobreaper_stages AS named
            ON named."table" = total."table"
           AND named.stage = total.stage
          LEFT JOIN jobreaper_stages AS last_named
            ON last_named."table" = total."table"
           AND last_named.place = 50) AS labelled
 WHERE label IS NOT NULL
 GROUP BY name, "table", label
