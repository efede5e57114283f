-- Take entries from the list of a worker that is dead, and put each where the verdict says.
--
-- KEYS[1]   the worker's heartbeat key
-- KEYS[2]   its processing list
-- KEYS[3…]  where entries go
-- ARGV      for each entry: the entry, the number of its target in KEYS, what to write there
--
-- Returns nil if the worker is alive after all. Otherwise a list with 1 for each entry that was moved,
-- 0 for each that was no longer there (its worker or another reaper was first), and -1 for each that
-- its target refused, and that is in the list as before.

if redis.call('EXISTS', KEYS[1]) == 1 then
    return false
end
local moved = {}
for i = 1, #ARGV, 3 do
    local found = redis.call('LREM', KEYS[2], -1, ARGV[i])
    if found == 1 then
        local target = KEYS[tonumber(ARGV[i + 1])]
        local refused = push_or_put_back('LPUSH', target, ARGV[i + 2], KEYS[2], ARGV[i])
        if refused then
            found = -1
        end
    end
    moved[#moved + 1] = found
end
return moved
