-- Complete entries and keep what their handlers returned.
-- KEYS     1 stream   then two for each entry: result, outcome
-- ARGV     1 group   2 result_ttl_s   3 outcome_ttl_s
--          then for each entry: entry id, result ("": nothing to keep), outcome
-- RETURNS  one mark an entry: 1 done, 0 gone (not pending)
-- SETTLES  a result without a completion: both happen here or neither does.
local count = (#ARGV - 3) / 3
if count < 1 or count ~= math.floor(count) then
  return redis.error_reply('ERR entries come in threes')
end
if #KEYS ~= 1 + count * 2 then return redis.error_reply('ERR each entry needs two keys') end
for i = 2, 3 do
  if not string.find(ARGV[i], '^[1-9]%d*$') or #ARGV[i] > 10 then
    return redis.error_reply('ERR a ttl must be a time')
  end
end
local marks, gone = {}, {}
for i = 1, count do
  local at = 1 + i * 3
  if redis.call('XACK', KEYS[1], ARGV[1], ARGV[at]) == 1 then
    gone[#gone + 1] = ARGV[at]
    -- A key of the wrong type is overwritten; nothing may fail after the ack.
    if ARGV[at + 1] ~= '' then
      redis.call('SET', KEYS[i * 2], ARGV[at + 1], 'EX', ARGV[2])
    else
      -- An earlier job of the same id may have left one.
      redis.call('DEL', KEYS[i * 2])
    end
    redis.call('SET', KEYS[i * 2 + 1], ARGV[at + 2], 'EX', ARGV[3])
    marks[i] = 1
  else
    marks[i] = 0
  end
end
-- In one go: each search for an entry begins at the head of its node.
if #gone > 0 then redis.call('XDEL', KEYS[1], unpack(gone)) end
return marks
