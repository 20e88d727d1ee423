-- Add rows with ids of their own: once per write token, once per id, never above the cap.
-- KEYS     1 stream   2 write token   3.. one marker for each row
--          then, optional, outcome and result of each row: what a former job left there
-- ARGV     1 stream_len_max (0: no cap)   2 token_ttl_s   3 unique_for_ms
--          4 is_at_once ("1": the server has MSETEX, and no id comes twice; else "0")
--          5 row_count, then by column: digests, envelopes, names (or one name for all rows)
-- RETURNS  "full" when the new rows do not fit, else one character a row:
--          1 added, 0 the same id was there, 2 the id is taken by another job
-- SETTLES  two writers of the same rows: whoever sets a marker adds its row.
-- Globals are looked up anew each time; as locals a row costs a fortieth less.
local redis, KEYS, ARGV = redis, KEYS, ARGV
local known = redis.call('GET', KEYS[2])
if known then return known end
local count = tonumber(ARGV[5])
if not count or count < 1 or count > 1000 or count ~= math.floor(count) then
  return redis.error_reply('ERR there must be one row to a thousand')
end
local has_leftovers, has_one_name = #KEYS == 2 + count * 3, #ARGV == 6 + count * 2
if not has_one_name and #ARGV ~= 5 + count * 3 then
  return redis.error_reply('ERR a row has a digest, an envelope and a name')
end
if not has_leftovers and #KEYS ~= 2 + count then
  return redis.error_reply('ERR a row has one marker, or three keys')
end
local cap, unique_ms = tonumber(ARGV[1]), tonumber(ARGV[3])
if not (unique_ms and unique_ms >= 1) then
  return redis.error_reply('ERR unique_for_ms must be a time')
end
-- A key of the wrong type must fail before the first write.
local stream = KEYS[1]
local backlog = redis.call('XLEN', stream)
if cap > 0 then
  local fresh, seen = 0, {}
  local found = redis.call('MGET', unpack(KEYS, 3, 2 + count))
  for i = 1, count do
    local key = KEYS[2 + i]
    if not found[i] and not seen[key] then fresh, seen[key] = fresh + 1, true end
  end
  if fresh > 0 and backlog + fresh > cap then return 'full' end
end
-- Most writes hold new ids only. A server that took over and has no such command refuses it.
local function set_all()
  local parts = {}
  for i = 1, count do
    parts[i * 2 - 1], parts[i * 2] = KEYS[2 + i], ARGV[5 + i]
  end
  local at = count * 2
  parts[at + 1], parts[at + 2], parts[at + 3] = 'NX', 'PX', ARGV[3]
  return redis.pcall('MSETEX', count, unpack(parts)) == 1
end
needs('SET', KEYS[2], '')
needs('DEL', KEYS[3])
local are_all_new = ARGV[4] == '1' and set_all()
-- A row that the stream refuses must not stay marked: its next write would count it as added.
local function forget_from(first)
  for i = first, are_all_new and count or first do redis.call('DEL', KEYS[2 + i]) end
end
local marks = {}
for i = 1, count do
  local key, digest, envelope = KEYS[2 + i], ARGV[5 + i], ARGV[5 + count + i]
  local name = ARGV[5 + count * 2 + (has_one_name and 1 or i)]
  if are_all_new or redis.call('SET', key, digest, 'NX', 'PX', ARGV[3]) then
    local added
    if name == '' then
      added = redis.pcall('XADD', stream, '*', 'd', envelope)
    else
      added = redis.pcall('XADD', stream, '*', 'd', envelope, 'n', name)
    end
    if type(added) == 'table' and added.err then
      forget_from(i)
      return added
    end
    if has_leftovers then redis.call('DEL', KEYS[1 + count + i * 2], KEYS[2 + count + i * 2]) end
    marks[i] = '1'
  else
    marks[i] = redis.call('GET', key) == digest and '0' or '2'
  end
end
local answer = table.concat(marks)
redis.call('SET', KEYS[2], answer, 'EX', ARGV[2])
return answer
