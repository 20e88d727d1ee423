-- Remove a repeat spec, armed or put aside.
-- KEYS     1 repeat (zset)   2 spec hash   3 bad specs (hash)   4 request token
-- ARGV     1 token_ttl_s   2 spec key
-- RETURNS  1 removed, it will not fire again; 0 there was none
-- SETTLES  a resend after a lost reply: it answers what the first send did.
local known = redis.call('GET', KEYS[4])
if known then return tonumber(known) end
-- Keys of the wrong type must fail before the first write.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[3])
needs('HDEL', KEYS[3], '')
needs('DEL', KEYS[2])
needs('SET', KEYS[4], '')
local armed = redis.call('ZREM', KEYS[1], ARGV[2])
local aside = redis.call('HDEL', KEYS[3], ARGV[2])
redis.call('DEL', KEYS[2])
local removed = math.max(armed, aside)
redis.call('SET', KEYS[4], removed, 'EX', ARGV[1])
return removed
