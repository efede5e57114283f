-- Confirm an entry that a blocking move brought: the worker may have been frozen before the answer
-- reached it, and the reaper may have taken the entry back.
--
-- KEYS[1]  the worker's processing list
-- KEYS[2]  its heartbeat key
-- ARGV[1]  milliseconds that the heartbeat lasts
-- ARGV[2]  the entry
--
-- Returns 1 if the entry is this worker's, and 0 if not.

if redis.call('LINDEX', KEYS[1], -1) ~= ARGV[2] then
    return 0
end
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
return 1
