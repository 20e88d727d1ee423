-- Complete entries and keep what their handlers returned.
-- KEYS     1 stream   then by column: the result of each entry, its outcome
-- ARGV     1 group   2 result_ttl_s   3 outcome_ttl_s
--          4 has_ack_delete   5 has_many_set ("1": the server has XACKDEL, MSETEX; else "0")
--          then by column: entry ids, results ("": nothing to keep), outcomes
-- RETURNS  one mark an entry: 1 done, 0 gone (not pending)
-- SETTLES  a result without a completion: both happen here or neither does.
-- Globals are looked up anew each time; as locals an entry costs less.
local redis, KEYS, ARGV = redis, KEYS, ARGV
local stream, group = KEYS[1], ARGV[1]
local count = (#ARGV - 5) / 3
if count < 1 or count ~= math.floor(count) then
  return redis.error_reply('ERR entries come in threes')
end
if #KEYS ~= 1 + count * 2 then return redis.error_reply('ERR each entry needs two keys') end
for i = 2, 3 do
  if not string.find(ARGV[i], '^[1-9]%d*$') or #ARGV[i] > 10 then
    return redis.error_reply('ERR a ttl must be a time')
  end
end

needs('SET', KEYS[2], '')
needs('DEL', KEYS[2])
if ARGV[4] ~= '1' then needs('XDEL', stream, '0-0') end

local function ack_each()
  local marks, gone = {}, {}
  for i = 1, count do
    marks[i] = redis.call('XACK', stream, group, ARGV[5 + i])
    if marks[i] == 1 then gone[#gone + 1] = ARGV[5 + i] end
  end
  -- In one go: each search for an entry begins at the head of its node.
  if #gone > 0 then redis.call('XDEL', stream, unpack(gone)) end
  return marks
end

local function ack_all()
  if ARGV[4] ~= '1' then return ack_each() end
  return redis.call('XACKDEL', stream, group, 'IDS', count, unpack(ARGV, 6, 5 + count))
end

-- A key of the wrong type is overwritten; nothing may fail after the ack.
local function set_all(parts, ttl_s)
  local size = #parts
  if size == 0 then return end
  if ARGV[5] == '1' then
    parts[size + 1], parts[size + 2] = 'EX', ttl_s
    if redis.pcall('MSETEX', size / 2, unpack(parts)) == 1 then return end
  end
  for i = 1, size, 2 do redis.call('SET', parts[i], parts[i + 1], 'EX', ttl_s) end
end

local marks = ack_all()
local results, outcomes, leftovers, done = {}, {}, {}, 0
for i = 1, count do
  if marks[i] == 1 then
    local result = ARGV[5 + count + i]
    if result == '' then
      -- An earlier job of the same id may have left one.
      leftovers[#leftovers + 1] = KEYS[1 + i]
    else
      local at = #results
      results[at + 1], results[at + 2] = KEYS[1 + i], result
    end
    outcomes[done + 1], outcomes[done + 2] = KEYS[1 + count + i], ARGV[5 + count * 2 + i]
    done = done + 2
  else
    marks[i] = 0
  end
end
-- First, because another entry of the same job may have a result.
if #leftovers > 0 then redis.call('DEL', unpack(leftovers)) end
set_all(results, ARGV[2])
set_all(outcomes, ARGV[3])
return marks
