-- Move failed entries from the stream to the delayed set, if they are still ours.
-- KEYS     1 stream   2 delayed (zset)   3 dix (hash: job id -> due ms)
-- ARGV     1 group   2 consumer   then for each entry: entry id, delay_ms, job id, member
-- RETURNS  one mark an entry: 1 done, 0 gone (not pending), -1 not owner (somebody else holds it)
-- SETTLES  a zombie's failure: only the owner may fail an entry, and only once.
local count = (#ARGV - 2) / 4
if count < 1 or count ~= math.floor(count) then
  return redis.error_reply('ERR entries come in fours')
end
local first, last, first_place, last_place
for i = 3, #ARGV, 4 do
  local delay_ms = tonumber(ARGV[i + 1])
  if not delay_ms or not (delay_ms >= 0 and delay_ms < 2 ^ 53) then
    return redis.error_reply('ERR delay_ms must be a time')
  end
  local ms, seq = string.match(ARGV[i], '^(%d+)%-(%d+)$')
  if not ms then return redis.error_reply('ERR an entry id must be two numbers') end
  local place = ms * 2 ^ 20 + seq
  if not first or place < first_place then first, first_place = ARGV[i], place end
  if not last or place > last_place then last, last_place = ARGV[i], place end
end
-- Keys of the wrong type must fail before the first write.
redis.call('ZCARD', KEYS[2])
redis.call('HLEN', KEYS[3])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- Entries that fail together were read together: one look tells of nearly all, and whom it
-- leaves out is asked for. An id that comes twice is gone the second time.
local known = {}
for _, held in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], first, last, count, ARGV[2])) do
  known[held[1]] = 1
end
local function ask(id)
  local held = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if #held == 0 then return 0 end
  return held[1][2] == ARGV[2] and 1 or -1
end

local marks, ids, scored, indexed = {}, {}, {}, {}
for i = 3, #ARGV, 4 do
  local id, job_id = ARGV[i], ARGV[i + 2]
  local mark = known[id] or ask(id)
  marks[#marks + 1] = mark
  if mark == 1 then
    known[id] = 0
    local due_ms = string.format('%.0f', now_ms + tonumber(ARGV[i + 1]))
    ids[#ids + 1] = id
    scored[#scored + 1] = due_ms
    scored[#scored + 1] = ARGV[i + 3]
    if job_id ~= '' then
      indexed[#indexed + 1] = job_id
      indexed[#indexed + 1] = due_ms
    end
  end
end
if #ids > 0 then
  redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))
  redis.call('XDEL', KEYS[1], unpack(ids))
  redis.call('ZADD', KEYS[2], unpack(scored))
end
if #indexed > 0 then redis.call('HSET', KEYS[3], unpack(indexed)) end
return marks
