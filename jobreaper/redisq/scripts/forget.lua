-- Forget files that are gone, unless another producer has seen them anew.
--
-- KEYS: the hash of known files. ARGV: for each file its path and the version that is gone.

local forgotten = 0
for at = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[at]) == ARGV[at + 1] then
    forgotten = forgotten + redis.call('HDEL', KEYS[1], ARGV[at])
  end
end
return forgotten
