-- Enqueue many jobs at once, and say which were made and which replaced a queued one.
WITH {enqueued}
SELECT made.id
  FROM made
  LEFT JOIN notified ON true
