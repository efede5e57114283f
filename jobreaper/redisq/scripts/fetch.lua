-- Move the next entry into a worker's own list, and renew its heartbeat in the same moment.
--
-- KEYS[1]   the worker's processing list
-- KEYS[2]   its heartbeat key
-- KEYS[3…]  queues, the preferred one first
-- ARGV[1]   milliseconds that the heartbeat lasts
-- ARGV[2]   LMOVE, or RPOPLPUSH before Redis 6.2
--
-- Returns {number, entry}: the queue is KEYS[2 + number]. The number is 0 for an entry that is in the
-- list already: it was moved before, and the answer was lost. Returns nil if the queues are empty.

local held = redis.call('LINDEX', KEYS[1], -1)
if held then
    redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
    return {0, held}
end

-- A queue that cannot be read does not stop the others.
local refused = nil
for i = 3, #KEYS do
    local entry
    if ARGV[2] == 'LMOVE' then
        entry = redis.pcall('LMOVE', KEYS[i], KEYS[1], 'RIGHT', 'LEFT')
    else
        entry = redis.pcall('RPOPLPUSH', KEYS[i], KEYS[1])
    end
    if failed(entry) then
        refused = entry
    elseif entry then
        redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
        return {i - 2, entry}
    end
end
return refused or false
