-- Become or stay the leader.
-- KEYS     1 lock
-- ARGV     1 holder   2 ttl_s
-- RETURNS  1 the lock is ours, 0 another holder has it
-- SETTLES  two candidates: the key is either absent, ours, or somebody else's.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
