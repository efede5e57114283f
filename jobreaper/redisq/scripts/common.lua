-- What several scripts share. scripts.py puts it in front of each of them.

-- Whether a reply of redis.pcall() is an error.
local function failed(reply)
    return type(reply) == 'table' and reply.err ~= nil
end

-- The server's clock, in milliseconds.
local function now_ms()
    local now = redis.call('TIME')
    return tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
end

-- Put `entry` into `list` with `push`. If that is refused, because the key is of another type, put
-- `original` back to where it was and return the error: a script is not undone.
local function push_or_put_back(push, list, entry, back, original)
    local reply = redis.pcall(push, list, entry)
    if failed(reply) then
        redis.call('RPUSH', back, original)
        return reply
    end
    return nil
end

-- Whether the worker that owns `heartbeat` ended this run before: the answer was lost on its way,
-- and the worker asks again.
local function ended_before(heartbeat, run)
    return redis.call('GET', heartbeat) == 'ended:' .. run
end

-- Remember the end of a run, and renew the heartbeat.
local function remember_end(heartbeat, run, ttl_ms)
    redis.call('SET', heartbeat, 'ended:' .. run, 'PX', ttl_ms)
end
