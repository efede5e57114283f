-- Move an entry from a worker's own list to where its failure leads, if it is still there: to the
-- delayed jobs of its queue, or to the dead-letter list.
--
-- KEYS[1]  the worker's processing list
-- KEYS[2]  its heartbeat key
-- KEYS[3]  the sorted set of delayed jobs, or the dead-letter list
-- ARGV[1]  the entry
-- ARGV[2]  the run, a number of this worker's
-- ARGV[3]  milliseconds that the heartbeat lasts
-- ARGV[4]  what to write in place of the entry
-- ARGV[5]  milliseconds until it is due again, or '' for the dead-letter list
--
-- Returns 1, or 0 if the entry is no longer this worker's.

if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then
    return ended_before(KEYS[2], ARGV[2]) and 1 or 0
end
if ARGV[5] == '' then
    local refused = push_or_put_back('LPUSH', KEYS[3], ARGV[4], KEYS[1], ARGV[1])
    if refused then
        return refused
    end
else
    local reply = redis.pcall('ZADD', KEYS[3], now_ms() + tonumber(ARGV[5]), ARGV[4])
    if failed(reply) then
        redis.call('RPUSH', KEYS[1], ARGV[1])
        return reply
    end
end
remember_end(KEYS[2], ARGV[2], ARGV[3])
return 1
