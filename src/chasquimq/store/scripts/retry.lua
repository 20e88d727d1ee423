-- Move failed entries from the stream to the delayed set, if they are still ours.
-- KEYS     1 stream   2 delayed (zset)   3 dix (hash: job id -> due ms)
-- ARGV     1 group   2 consumer   then for each entry: entry id, delay_ms, job id, member
-- RETURNS  one mark an entry: 1 done, 0 gone (not pending), -1 not owner (somebody else holds it)
-- SETTLES  a zombie's failure: only the owner may fail an entry, and only once.
local count = (#ARGV - 2) / 4
if count < 1 or count ~= math.floor(count) then
  return redis.error_reply('ERR entries come in fours')
end
for i = 1, count do
  local delay_ms = tonumber(ARGV[i * 4])
  if not delay_ms or not (delay_ms >= 0 and delay_ms < 2 ^ 53) then
    return redis.error_reply('ERR delay_ms must be a time')
  end
  if not string.find(ARGV[i * 4 - 1], '^%d+%-%d+$') then
    return redis.error_reply('ERR an entry id must be two numbers')
  end
end
-- Keys of the wrong type must fail before the first write.
redis.call('ZCARD', KEYS[2])
redis.call('HLEN', KEYS[3])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local marks = {}
for i = 1, count do
  local at = i * 4 - 1
  local id = ARGV[at]
  local held = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if #held == 0 then
    marks[i] = 0
  elseif held[1][2] ~= ARGV[2] then
    marks[i] = -1
  else
    redis.call('XACK', KEYS[1], ARGV[1], id)
    redis.call('XDEL', KEYS[1], id)
    local due_ms = string.format('%.0f', now_ms + tonumber(ARGV[at + 1]))
    redis.call('ZADD', KEYS[2], due_ms, ARGV[at + 3])
    if ARGV[at + 2] ~= '' then redis.call('HSET', KEYS[3], ARGV[at + 2], due_ms) end
    marks[i] = 1
  end
end
return marks
