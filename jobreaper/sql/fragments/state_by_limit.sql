-- Of a table without leases: what has no time to live is never reclaimed.
CASE WHEN {last_seen_at} < statement_timestamp() - limits.ttl THEN {expired}
     WHEN {last_seen_at} >= statement_timestamp() - limits.ttl THEN {live}
     ELSE {none} END
