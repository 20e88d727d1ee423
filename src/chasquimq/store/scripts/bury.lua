-- Move entries from the stream to the DLQ, if they are still ours.
-- KEYS     1 stream   2 dlq   then, when outcomes are kept, one outcome for each entry
-- ARGV     1 group   2 consumer   3 outcome_ttl_s (0: outcomes are not kept)
--          then for each entry: entry id, outcome, field count, that many fields and values;
--          an outcome is MessagePack without its last value, the id of the DLQ entry, added here
-- RETURNS  one mark an entry: 1 done, 0 gone (not pending), -1 not owner (somebody else holds it)
-- SETTLES  one end for each job: only an entry that is pending is moved, so a DLQ entry exists exactly
--          once; after an error nothing has moved.
local starts, at = {}, 4
while at <= #ARGV do
  local size = tonumber(ARGV[at + 2])
  if not size or size < 2 or size % 2 ~= 0 or at + 2 + size > #ARGV then
    return redis.error_reply('ERR fields must come in pairs')
  end
  if not string.find(ARGV[at], '^%d+%-%d+$') then
    return redis.error_reply('ERR an entry id must be two numbers')
  end
  starts[#starts + 1] = at
  at = at + 3 + size
end
if not string.find(ARGV[3], '^%d+$') or #ARGV[3] > 10 then
  return redis.error_reply('ERR outcome_ttl_s must be a time')
end
local keeps_outcomes = tonumber(ARGV[3]) > 0
if keeps_outcomes and #KEYS ~= 2 + #starts then
  return redis.error_reply('ERR each entry needs a key for its outcome')
end
-- A key of the wrong type must fail before the first write.
redis.call('XLEN', KEYS[2])
local time = redis.call('TIME')
local now_ms = string.format('%.0f',
  tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local marks, ids, seen = {}, {}, {}
for i, from in ipairs(starts) do
  local id = ARGV[from]
  local held = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if #held == 0 or seen[id] then
    marks[i] = 0
  elseif held[1][2] ~= ARGV[2] then
    marks[i] = -1
  else
    marks[i], seen[id] = 1, true
    ids[#ids + 1] = id
  end
end
if #ids == 0 then return marks end
needs('XDEL', KEYS[1], '0-0')
needs('XDEL', KEYS[2], '0-0')
if keeps_outcomes then needs('SET', KEYS[3], '') end
-- Acknowledges nothing: after an ack a server that is out of memory lets a script write.
redis.call('XACK', KEYS[1], ARGV[1], '0-0')

local function write_dead(from)
  local fields, size = {}, tonumber(ARGV[from + 2])
  for n = 1, size do fields[n] = ARGV[from + 2 + n] end
  fields[size + 1], fields[size + 2] = 'failed_at', now_ms
  return redis.pcall('XADD', KEYS[2], '*', unpack(fields))
end

-- The DLQ may refuse an entry, so all are written before the first is acknowledged.
local dead, dead_ids = {}, {}
for i, from in ipairs(starts) do
  if marks[i] == 1 then
    local added = write_dead(from)
    if added.err then
      if #dead > 0 then redis.pcall('XDEL', KEYS[2], unpack(dead)) end
      return added
    end
    dead[#dead + 1], dead_ids[i] = added, added
  end
end
redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))
-- In one go: each search for an entry begins at the head of its node.
redis.call('XDEL', KEYS[1], unpack(ids))
for i, from in ipairs(starts) do
  if keeps_outcomes and marks[i] == 1 then
    local spelled_id = '\217' .. string.char(#dead_ids[i]) .. dead_ids[i]
    redis.call('SET', KEYS[2 + i], ARGV[from + 1] .. spelled_id, 'EX', ARGV[3])
  end
end
return marks
