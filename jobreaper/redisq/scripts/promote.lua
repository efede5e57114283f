-- Move delayed jobs that are due to the back of their queues.
--
-- KEYS     a sorted set of delayed jobs and its queue, for each queue
-- ARGV[1]  how many at most of each
--
-- Returns how many were moved, or the error of a queue that refused its jobs; it does not stop the
-- others. A member is `<token>|<entry>`: the token keeps two jobs with the
-- same bytes apart. A member that begins with `{` is an entry without a token.

local now, moved, refused = now_ms(), 0, nil
for i = 1, #KEYS, 2 do
    local due = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', now, 'LIMIT', 0, ARGV[1])
    for _, member in ipairs(due) do
        local entry = member
        if string.sub(member, 1, 1) ~= '{' then
            entry = string.sub(member, (string.find(member, '|', 1, true) or 0) + 1)
        end
        redis.call('ZREM', KEYS[i], member)
        local reply = redis.pcall('LPUSH', KEYS[i + 1], entry)
        if failed(reply) then
            redis.call('ZADD', KEYS[i], now, member)
            refused = reply
            break
        end
        moved = moved + 1
    end
end
return refused or moved
