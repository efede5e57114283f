-- Dry run of a reclaim: the same verdicts, nothing locked and nothing written.
WITH {stale}
SELECT {reclaimed_columns}
  FROM verdict
 ORDER BY last_seen_at
