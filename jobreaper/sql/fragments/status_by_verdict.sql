-- The last branch is never taken. It gives the words the column's own type, which may be an enum.
CASE WHEN verdict.requeues THEN {queued}
     WHEN NOT verdict.requeues THEN {failed}
     ELSE job.{status} END
