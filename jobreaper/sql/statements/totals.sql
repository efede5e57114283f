-- The counters: read them, and fold their rows into one each.

-- name: totals
-- Totals: the counts so far.
WITH total AS (SELECT * FROM {jobreaper_totals})
SELECT name, "table", label,
       LEAST(sum(count), {largest})::bigint,
       LEAST(sum(microseconds), {largest})::bigint,
       extract(epoch FROM max(last_at))::float8
  FROM ({labelled_totals}) AS labelled
 WHERE label IS NOT NULL
 GROUP BY name, "table", label


-- name: fold_totals
-- Fold: assign names to new stages, and merge each total into one row, its oldest. This is one
-- statement, so that a reader sees the state before or after. Rows that another fold has locked and
-- rows that are not committed yet are left to the next fold, so nothing waits.
WITH
-- Names: which stages have a series of their own. A name is given once and never taken back, or the
-- counters would go down. Stages with a policy have one without a place, of the others the first
-- few of each table. One transaction at a time gives names, and the others do not wait for it: what
-- was committed since this statement began is a conflict, and left as it is.
named AS (
    INSERT INTO {jobreaper_stages} ("table", stage, place)
    SELECT "table", stage, place
      FROM (SELECT "table", stage,
                   CASE WHEN NOT is_known
                        THEN (SELECT coalesce(max(named.place), 0)
                                FROM {jobreaper_stages} AS named
                               WHERE named."table" = unnamed."table")
                             + row_number() OVER (PARTITION BY "table", is_known ORDER BY min(id))
                   END AS place
              FROM (SELECT total.*, total.stage = ANY (%(known_stages)s::text[]) AS is_known
                      FROM {jobreaper_totals} AS total
                      LEFT JOIN {jobreaper_stages} AS named USING ("table", stage)
                     WHERE named.id IS NULL) AS unnamed
             GROUP BY "table", stage, is_known) AS placed
     WHERE (place IS NULL OR place <= {most_stages})
       AND pg_try_advisory_xact_lock(hashtext('jobreaper stages'), hashtext("table"))
    ON CONFLICT DO NOTHING
),
total AS MATERIALIZED (
    SELECT * FROM {jobreaper_totals} FOR UPDATE SKIP LOCKED
),
labelled AS MATERIALIZED (
    SELECT id, name, "table", coalesce(label, stage) AS stage, count, microseconds, last_at
      FROM ({labelled_totals}) AS labelled
),
folded AS (
    SELECT name, "table", stage,
           min(id) AS id,
           LEAST(sum(count), {largest}) AS count,
           LEAST(sum(microseconds), {largest}) AS microseconds,
           max(last_at) AS last_at
      FROM labelled
     GROUP BY name, "table", stage
    HAVING count(*) > 1
),
merged AS (
    DELETE FROM {jobreaper_totals} AS total
     USING labelled JOIN folded USING (name, "table", stage)
     WHERE total.id = labelled.id
       AND labelled.id <> folded.id
)
UPDATE {jobreaper_totals} AS total
   SET stage = folded.stage,
       count = folded.count,
       microseconds = folded.microseconds,
       last_at = folded.last_at
  FROM folded
 WHERE total.id = folded.id
RETURNING total.id


-- name: record_pass
-- Record a pass, and count it.
WITH counted AS (
    INSERT INTO {jobreaper_totals} (name, "table", microseconds)
    SELECT *
      FROM unnest(%(names)s::text[], %(tables)s::text[], %(microseconds)s::bigint[])
)
INSERT INTO {jobreaper_passes} (
       started_at, duration_ms, trigger, reaper, machine, machine_sec, counts, requeued, failed,
       held, held_reason, silent_until, error)
VALUES (statement_timestamp() - make_interval(secs => %(seconds)s), %(duration_ms)s, %(trigger)s,
        %(reaper)s, %(machine)s, %(machine_sec)s, %(counts)s, %(requeued)s, %(failed)s,
        %(held)s, %(held_reason)s, %(silent_until)s, %(error)s)
RETURNING id
