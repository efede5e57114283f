-- Only one of the jobs with the same dedupe key may be queued or processing. A job that would be
-- the second one is left as it is; of several in one statement, the newest is taken.
(%(target)s <> {queued}
 OR {is_processing}
 OR job.{dedupe_key} IS NULL
 OR NOT EXISTS (
        SELECT FROM {table} AS other
         WHERE other.{dedupe_key} IS NOT NULL
           AND other.{status} IN ({queued}, {processing})
           AND {digest_of_other} = {digest_of_job})
    AND NOT EXISTS (
        SELECT FROM {table} AS other
         WHERE other.{id} = ANY (%(ids)s::{id_type}[])
           AND other.{status} = ANY (%(sources)s::text[])
           AND other.{dedupe_key} = job.{dedupe_key}
           AND other.{id} > job.{id}))
