-- Become or stay the leader of work that waits for its time, and see when there is some.
-- KEYS     1 lock   2 what waits (zset, scored by due time in ms)
-- ARGV     1 holder   2 ttl_s
-- RETURNS  {0, ms until the lock may be free} another holder has it
--          {1, now_ms, when the first is due in ms (-1: nothing waits), how many wait}
-- SETTLES  two candidates: the key is either absent, ours, or somebody else's.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return {0, redis.call('PTTL', KEYS[1])} end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local depth = redis.call('ZCARD', KEYS[2])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
-- A score may be infinite, which no whole number can tell.
local due_ms = first[2] and math.max(0, math.min(2 ^ 53, tonumber(first[2]))) or -1
return {1, now_ms, due_ms, depth}
