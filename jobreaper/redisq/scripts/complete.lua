-- Move an entry from a worker's own list to the completed list, if it is still there.
--
-- KEYS[1]  the worker's processing list
-- KEYS[2]  its heartbeat key
-- KEYS[3]  the completed list
-- ARGV[1]  the entry
-- ARGV[2]  the run, a number of this worker's
-- ARGV[3]  milliseconds that the heartbeat lasts
--
-- Returns 1, or 0 if the entry is no longer this worker's. Without memory for more, Redis lets a
-- script go on after its first write: so LREM comes first, and a job can always be ended.

if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then
    return ended_before(KEYS[2], ARGV[2]) and 1 or 0
end
local refused = push_or_put_back('LPUSH', KEYS[3], ARGV[1], KEYS[1], ARGV[1])
if refused then
    return refused
end
remember_end(KEYS[2], ARGV[2], ARGV[3])
return 1
