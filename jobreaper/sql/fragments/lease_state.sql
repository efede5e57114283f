-- As LeasedJobQuerySet.with_lease_state() has it.
CASE WHEN job.{lease_expires_at} IS NULL THEN {none}
     WHEN job.{lease_expires_at} < statement_timestamp() THEN {expired}
     WHEN job.{last_heartbeat_at} >= statement_timestamp() - make_interval(secs => %(late_sec)s)
     THEN {live}
     ELSE {late} END
