-- Fold: new stages get their names, and each total becomes one row, the oldest it had. One
-- statement, so that whoever adds them up sees them before or after. Rows that another fold has in
-- hand and rows not committed yet are left to the next fold: nobody waits.
WITH named AS ({named_stages}),
total AS MATERIALIZED (
    SELECT * FROM jobreaper_totals FOR UPDATE SKIP LOCKED
),
labelled AS MATERIALIZED (
    SELECT id, name, "table", coalesce(label, stage) AS stage, count, microseconds, last_at
      FROM ({labelled_totals}) AS labelled
),
folded AS (
    SELECT name, "table", stage,
           min(id) AS id,
           sum(count) AS count,
           LEAST(sum(microseconds), {largest}) AS microseconds,
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
