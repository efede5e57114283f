-- Of jobs with one dedupe key only one may be queued or processing: a job that would be a second
-- one is left as it is, and of several in one go the last made is taken.
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
