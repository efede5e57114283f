stale AS MATERIALIZED (
    SELECT {key_columns},
           {key_as_text} AS job_id,
           {read_stage} AS stage,
           {read_locked_by} AS locked_by,
           {attempts_of_job} AS attempt_count,
           {max_attempts_of_job} AS max_attempts,
           {last_seen_at} AS last_seen_at,
           limits.ttl
      FROM {table} AS job
      JOIN ({limits}) AS limits ON {limit_of_job}
     WHERE {is_processing}
       AND {last_seen_at} < statement_timestamp() - limits.ttl
       AND {chosen}
     ORDER BY {order}
     LIMIT %(batch)s
       {lock}
),
verdict AS MATERIALIZED (
    SELECT stale.*,
           decided.requeues,
           CASE WHEN isfinite(stale.last_seen_at) THEN
               round(extract(epoch FROM statement_timestamp() - stale.last_seen_at - stale.ttl)
                     * 1000)::bigint END AS overdue_ms,
           {note} || ': Exceeded TTL (' || allowed.in_words || ')'
               || CASE WHEN stale.attempt_count >= stale.max_attempts
                       THEN ' - Max attempts reached' ELSE '' END AS note
      FROM stale
     CROSS JOIN LATERAL (
           SELECT {on_expiry} <> {fail} AND stale.attempt_count < stale.max_attempts AS requeues
           ) AS decided
     CROSS JOIN LATERAL (
           SELECT extract(epoch FROM stale.ttl) AS sec
           ) AS allowance
     CROSS JOIN LATERAL (
           SELECT CASE WHEN allowance.sec >= 60 AND mod(allowance.sec, 60) = 0
                       THEN trunc(allowance.sec / 60)::text || ' min'
                       ELSE allowance.sec::float8::text || ' s' END AS in_words
           ) AS allowed
)
