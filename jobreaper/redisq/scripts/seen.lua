-- Remember this server, and tell for how long it has been known: after a restart, a failover or a
-- loss of its data, workers need time to send a heartbeat before one can be called dead.
--
-- KEYS[1]  the reaper's record
-- ARGV[1]  the server's run_id
-- ARGV[2]  1 to begin anew, because this reaper could not reach the server for a while
--
-- Returns {milliseconds, cursor}: where the last pass stopped.

local record = redis.call('HMGET', KEYS[1], 'run_id', 'since_ms', 'cursor')
local now, since = now_ms(), tonumber(record[2])
-- The clock may have been set back.
if record[1] ~= ARGV[1] or ARGV[2] == '1' or not since or since > now then
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[1], 'run_id', ARGV[1], 'since_ms', now, 'cursor', '0')
    return {0, '0'}
end
return {now - since, record[3] or '0'}
