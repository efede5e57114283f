-- Delete old jobs and records, or count what would be deleted.

-- name: prune_jobs
-- Prune: delete a batch of the jobs that ended in this status longest ago, except for the first ones
-- that the database does not let go. A job to which other rows refer is kept, so nothing cascades.
WITH old AS MATERIALIZED (
    SELECT job.{id} AS id
      FROM {table} AS job
     WHERE {has_ended}
       AND job.{finished_at} < statement_timestamp() - make_interval(secs => %(age_sec)s)
       AND {is_unreferenced}
     ORDER BY job.{finished_at}
     LIMIT %(batch)s OFFSET %(kept)s
       FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM {table} AS job
     WHERE job.{id} = ANY (ARRAY(SELECT id FROM old))
    RETURNING 1
)
SELECT count(*) FROM deleted WHERE {all_written}


-- name: prune_jobs_dry_run
-- How many jobs a prune would delete.
SELECT count(*)
  FROM {table} AS job
 WHERE {has_ended}
   AND job.{finished_at} < statement_timestamp() - make_interval(secs => %(age_sec)s)
   AND {is_unreferenced}


-- name: prune_records
-- Prune: delete a batch of the oldest records. By ctid, because an adopted job_events may
-- have no index on its id.
WITH old AS MATERIALIZED (
    SELECT ctid
      FROM {records}
     WHERE {moment} < statement_timestamp() - make_interval(secs => %(age_sec)s)
     ORDER BY {moment}
     LIMIT %(batch)s OFFSET %(kept)s
       FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM {records}
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))
    RETURNING 1
)
SELECT count(*) FROM deleted WHERE {all_written}


-- name: prune_records_dry_run
-- How many records a prune would delete.
SELECT count(*)
  FROM {records}
 WHERE {moment} < statement_timestamp() - make_interval(secs => %(age_sec)s)
