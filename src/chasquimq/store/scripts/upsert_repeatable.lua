-- Write a repeat spec, unless the very same one is armed already.
-- KEYS     1 repeat (zset)   2 spec hash   3 bad specs (hash)   4 request token
-- ARGV     1 token_ttl_s   2 spec key   3 spec   4 retry ("": none)   5 next_fire_ms ("": only ask)
-- RETURNS  {"same", next_fire_ms} nothing changed
--          {"written", next_fire_ms} it is armed, and its fires are counted from 0
--          {"new", now_ms} asked only: send it again with its first fire after this time
-- SETTLES  a program that upserts at each start: the same bytes move no fire and reset no count.
local known = redis.call('GET', KEYS[4])
if known then return {'written', known} end
if ARGV[5] ~= '' and not tonumber(ARGV[5]) then
  return redis.error_reply('ERR next_fire_ms must be a number')
end
-- Keys of the wrong type must fail before the first write.
redis.call('HLEN', KEYS[3])
local score = redis.call('ZSCORE', KEYS[1], ARGV[2])
local spec, retry = unpack(redis.call('HMGET', KEYS[2], 'spec', 'retry'))
if score and spec == ARGV[3] and (retry or '') == ARGV[4] then return {'same', score} end
if ARGV[5] == '' then
  local time = redis.call('TIME')
  local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  return {'new', string.format('%.0f', now_ms)}
end
needs('HDEL', KEYS[2], '')
needs('HDEL', KEYS[3], '')
needs('ZADD', KEYS[1], 0, '')
needs('SET', KEYS[4], '')
redis.call('HSET', KEYS[2], 'spec', ARGV[3])
redis.call('HDEL', KEYS[2], 'fired', 'retry')
if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'retry', ARGV[4]) end
redis.call('ZADD', KEYS[1], ARGV[5], ARGV[2])
redis.call('HDEL', KEYS[3], ARGV[2])
redis.call('SET', KEYS[4], ARGV[5], 'EX', ARGV[1])
return {'written', ARGV[5]}
