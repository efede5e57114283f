-- Take one element out of the dead-letter list: for good, or back to a queue.
--
-- KEYS[1]  the dead-letter list
-- KEYS[2]  the queue, or nothing to discard the element
-- ARGV[1]  the element
-- ARGV[2]  the entry for the queue
--
-- Returns 1, or 0 if the element is no longer there.

if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then
    return 0
end
if KEYS[2] then
    local refused = push_or_put_back('LPUSH', KEYS[2], ARGV[2], KEYS[1], ARGV[1])
    if refused then
        return refused
    end
end
return 1
