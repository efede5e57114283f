({digest}) WHERE dedupe_key IS NOT NULL AND status IN ({queued}, {processing})
DO UPDATE SET payload = excluded.payload,
              priority = excluded.priority,
              next_earliest_run_at = excluded.next_earliest_run_at,
              traceparent = excluded.traceparent,
              dispatched_at = NULL,
              updated_at = statement_timestamp()
        WHERE job.status = {queued}
