-- Push files that have no job yet, as many as the rate limit leaves.
--
-- KEYS: the hash of known files, the counter of the rate limit, then the queues.
-- ARGV: the limit a second (0: none), then for each file its path, its version, the number of its
-- queue among the queues, and its job.
--
-- Returns the milliseconds until more may be pushed (0: at once), then for each file 1 (pushed),
-- 0 (known already, also by another producer) or -1 (the limit is reached).

local known, counter = KEYS[1], KEYS[2]
local limit = tonumber(ARGV[1])
local left = math.huge
if limit > 0 then
  local used = tonumber(redis.call('GET', counter))
  if not used then
    redis.call('DEL', counter)
  end
  left = limit - (used or 0)
end

local results = {0}
local pushed = 0
for at = 2, #ARGV, 4 do
  local path, version, queue, job = ARGV[at], ARGV[at + 1], KEYS[2 + tonumber(ARGV[at + 2])], ARGV[at + 3]
  if redis.call('HGET', known, path) == version then
    results[#results + 1] = 0
  elseif left > pushed then
    redis.call('LPUSH', queue, job)
    redis.call('HSET', known, path, version)
    pushed = pushed + 1
    results[#results + 1] = 1
  else
    results[#results + 1] = -1
  end
end

if limit > 0 then
  if pushed > 0 then
    redis.call('INCRBY', counter, pushed)
  end
  -- The first push of a second starts it. A counter that never expires is a client's that died.
  if redis.call('EXISTS', counter) == 1 and redis.call('PTTL', counter) < 0 then
    redis.call('PEXPIRE', counter, 1000)
  end
  if left <= pushed then
    results[1] = math.max(redis.call('PTTL', counter), 1)
  end
end
return results
