-- Fold: assign names to new stages, and merge each total into one row, its oldest. This is one
-- statement, so that a reader sees the state before or after. Rows that another fold has locked and
-- rows that are not committed yet are left to the next fold, so nothing waits.
WITH
-- Names: which stages have a series of their own. A name is given once and never taken back, or the
-- counters would go down. Stages with a policy have one without a place, of the others the first
-- few of each table. One transaction at a time gives names, and the others do not wait for it: what
-- was committed since this statement began is a conflict, and left as it is.
named AS (
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
     WHERE (place IS NULL OR place <= 50)
       AND pg_try_advisory_xact_lock(hashtext('jobreaper stages'), hashtext("table"))
    ON CONFLICT DO NOTHING
),
total AS MATERIALIZED (
    SELECT * FROM jobreaper_totals FOR UPDATE SKIP LOCKED
),
labelled AS MATERIALIZED (
    SELECT id, name, "table", coalesce(label, stage) AS stage, count, microseconds, last_at
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
),
folded AS (
    SELECT name, "table", stage,
           min(id) AS id,
           LEAST(sum(count), 9223372036854775807) AS count,
           LEAST(sum(microseconds), 9223372036854775807) AS microseconds,
           max(last_at) AS last_at
      FROM labelled
     GROUP BY name, "table", stage
    HAVING count(*) > 1
),
merged AS (
    DELETE FROM jobreaper_totals AS total
     USING labelled JOIN folded USING (name, "table", stage)
     WHERE total.id = labelled.id
       AND labelled.id <> folded.id
)
UPDATE jobreaper_totals AS total
   SET stage = folded.stage,
       count = folded.count,
       microseconds = folded.microseconds,
       last_at = folded.last_at
  FROM folded
 WHERE total.id = folded.id
RETURNING total.id
