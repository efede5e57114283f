-- How many more jobs of each limited stage may run, of the stages that are asked for only. A job whose
-- lease ran out takes no place. Counted to the limit and no further.
slots AS MATERIALIZED (
    SELECT limits.stage,
           limits.max_running - (
               SELECT count(*)
                 FROM ({takes_a_place} LIMIT limits.max_running) AS job) AS free
      FROM jsonb_to_recordset(%(limits)s::jsonb) AS limits (stage text, max_running int)
     WHERE (%(stages)s::text[] IS NULL OR limits.stage = ANY (%(stages)s::text[]))
       AND (%(id)s::{id_type} IS NULL
            OR limits.stage = (SELECT job.{stage} FROM {table} AS job
                                WHERE job.{id} = %(id)s::{id_type}))
)
