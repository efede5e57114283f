-- Names: which stages have a series of their own. A name is given once and never taken back, or the
-- counters would go down. Stages with a policy have one without a place, of the others the first
-- few of each table. One transaction at a time gives names, and the others do not wait for it: what
-- was committed since this statement began is a conflict, and left as it is.
INSERT INTO jobreaper_stages ("table", stage, place)
SELECT "table", stage, place
  FROM (SELECT "table", stage,
               CASE WHEN NOT is_known
                    THEN (SELECT coalesce(max(named.place), 0)
                            FROM jobreaper_stages AS named
                           WHERE named."table" = unnamed."table")
                         + row_number() OVER (PARTITION BY "table", is_known ORDER BY min(id))
               END AS place
          FROM (SELECT total.*, total.stage = ANY (%(known_stages)s::text[]) AS is_known
                  FROM jobreaper_totals AS total
                  LEFT JOIN jobreaper_stages AS named USING ("table", stage)
                 WHERE named.id IS NULL) AS unnamed
         GROUP BY "table", stage, is_known) AS placed
 WHERE (place IS NULL OR place <= {most_stages})
   AND pg_try_advisory_xact_lock(hashtext('jobreaper stages'), hashtext("table"))
ON CONFLICT DO NOTHING
