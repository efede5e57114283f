-- How many more jobs of each limited stage may run. A job whose lease ran out takes no place.
slots AS MATERIALIZED (
    SELECT limits.stage, limits.max_running - count(job.{id}) AS free
      FROM jsonb_to_recordset(%(limits)s::jsonb) AS limits (stage text, max_running int)
      LEFT JOIN {table} AS job ON job.{stage} = limits.stage AND {takes_a_place}
     GROUP BY limits.stage, limits.max_running
)
