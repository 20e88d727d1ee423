-- Put a repeat spec that can never fire aside, so that the others go on.
-- KEYS     1 repeat (zset)   2 spec hash   3 bad specs (hash)
-- ARGV     1 spec key   2 expected score   3 spec as it was judged ("": none)   4 record
-- RETURNS  1 put aside, 0 it changed meanwhile and deserves another look
-- SETTLES  an upsert that mends a spec while it is judged: what was not read is not touched.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then return 0 end
needs('HGET', KEYS[2], '')
needs('ZREM', KEYS[1], '')
-- A hash of the wrong type is a reason to be here.
local spec = redis.pcall('HGET', KEYS[2], 'spec')
if type(spec) ~= 'string' then spec = '' end
if spec ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
