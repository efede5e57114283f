-- Renew the heartbeats of a process, and tell what its lists hold.
--
-- KEYS     a heartbeat key and its processing list, for each worker of the process
-- ARGV[1]  milliseconds that a heartbeat lasts
--
-- Returns the length of each list, in order. PEXPIRE needs no memory, and keeps the mark of the
-- last end.

local lengths = {}
for i = 1, #KEYS, 2 do
    if redis.call('PEXPIRE', KEYS[i], ARGV[1]) == 0 then
        redis.call('SET', KEYS[i], '', 'PX', ARGV[1])
    end
    lengths[#lengths + 1] = redis.call('LLEN', KEYS[i + 1])
end
return lengths
