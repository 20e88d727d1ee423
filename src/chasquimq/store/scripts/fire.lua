-- Turn windows of a repeat spec that have come into jobs, and arm the next one.
-- KEYS     1 stream   2 repeat (zset)   3 spec hash   then one marker for each fire
-- ARGV     1 spec key   2 expected score   3 next_fire_ms (0: it is over)   4 limit (0: none)
--          5 end_before_ms (0: none)   6 marker_ttl_ms   7 name
--          then for each fire: due_ms, envelope
-- RETURNS  {mark, fired}: 1 armed again, 0 over and removed, -1 moved on: nothing was done
-- SETTLES  two schedulers at once: only the score that was read may fire, by the server's clock,
--          and a marker holds each due time to one job.
local count = (#ARGV - 7) / 2
if count ~= math.floor(count) or #KEYS ~= 3 + count then
  return redis.error_reply('ERR fires come with a due time, an envelope and a marker')
end
local expected, next_ms = tonumber(ARGV[2]), tonumber(ARGV[3])
local limit, end_ms, ttl_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if not (expected and next_ms and limit and end_ms and ttl_ms and ttl_ms > 0) then
  return redis.error_reply('ERR times and limits must be numbers')
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local score = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not score or tonumber(score) ~= expected or expected > now_ms then return {-1, 0} end
local spec, total = unpack(redis.call('HMGET', KEYS[3], 'spec', 'fired'))
if not spec then return {-1, 0} end
total = tonumber(total or '0')
if not total then return redis.error_reply('ERR fired must be a number') end
-- A key of the wrong type must fail before the first write.
redis.call('XLEN', KEYS[1])
if count > 0 then needs('SET', KEYS[4], '') end
needs('HINCRBY', KEYS[3], '', 0)
needs('DEL', KEYS[3])
needs('ZREM', KEYS[2], '')
needs('ZADD', KEYS[2], 0, '')

local function add(due_ms, envelope)
  if ARGV[7] == '' then return redis.pcall('XADD', KEYS[1], '*', 'd', envelope, 'due', due_ms) end
  return redis.pcall('XADD', KEYS[1], '*', 'd', envelope, 'n', ARGV[7], 'due', due_ms)
end

local fired, failure = 0, nil
for i = 1, count do
  if limit > 0 and total + fired >= limit then break end
  if redis.call('EXISTS', KEYS[3 + i]) == 0 then
    local added = add(ARGV[6 + i * 2], ARGV[7 + i * 2])
    if type(added) == 'table' and added.err then failure = added break end
    redis.call('SET', KEYS[3 + i], '1', 'PX', ARGV[6])
    fired = fired + 1
  end
end
if fired > 0 then redis.call('HINCRBY', KEYS[3], 'fired', fired) end
-- After an error the score stays, and the markers tell the next try what is done.
if failure then return failure end
local is_spent = limit > 0 and total + fired >= limit
if is_spent or next_ms <= 0 or (end_ms > 0 and next_ms > end_ms) then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('DEL', KEYS[3])
  return {0, fired}
end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
return {1, fired}
