-- Move dead jobs back to the stream as their next generation.
-- KEYS     1 dlq   2 stream   3 request token   then one outcome for each entry
-- ARGV     1 token_ttl_s   then for each entry: dlq entry id, envelope, name
-- RETURNS  one mark an entry: 1 replayed, 0 it was in the DLQ no more
-- SETTLES  two replays at once: only what is in the DLQ is replayed, and leaves it here; a resend
--          answers what the first send did. After an error nothing has moved.
local known = redis.call('GET', KEYS[3])
if known then
  local marks = {}
  for i = 1, #known do marks[i] = tonumber(string.sub(known, i, i)) end
  return marks
end
local count = (#ARGV - 1) / 3
if count < 1 or count ~= math.floor(count) then
  return redis.error_reply('ERR entries come in threes')
end
if #KEYS ~= 3 + count then
  return redis.error_reply('ERR each entry needs a key for its outcome')
end
if not string.match(ARGV[1], '^[1-9]%d*$') then
  return redis.error_reply('ERR token_ttl_s must be a time')
end
-- Keys of the wrong type and ids that are none must fail before the first write.
redis.call('XLEN', KEYS[2])
for i = 1, count do
  local id = ARGV[i * 3 - 1]
  if not string.match(id, '^%d+%-%d+$') then
    return redis.error_reply('ERR an entry id must be ms-seq')
  end
  redis.call('XRANGE', KEYS[1], id, '0-0', 'COUNT', 1)
end
needs('DEL', KEYS[4])
needs('SET', KEYS[3], '')
-- Deletes nothing: after a delete a server that is out of memory lets a script write.
redis.call('XDEL', KEYS[1], '0-0')

local function make_ready(envelope, name)
  if name == '' then return redis.pcall('XADD', KEYS[2], '*', 'd', envelope) end
  return redis.pcall('XADD', KEYS[2], '*', 'd', envelope, 'n', name)
end

-- The stream may refuse a job, so all are written before the first leaves the DLQ.
local marks, ids, added, seen = {}, {}, {}, {}
for i = 1, count do
  local at = i * 3 - 1
  local id = ARGV[at]
  marks[i] = 0
  if not seen[id] and #redis.call('XRANGE', KEYS[1], id, id, 'COUNT', 1) == 1 then
    local entry = make_ready(ARGV[at + 1], ARGV[at + 2])
    if entry.err then
      if #added > 0 then redis.pcall('XDEL', KEYS[2], unpack(added)) end
      return entry
    end
    marks[i], seen[id] = 1, true
    added[#added + 1], ids[#ids + 1] = entry, id
  end
end
if #ids > 0 then redis.call('XDEL', KEYS[1], unpack(ids)) end
for i = 1, count do
  -- How the last generation ended says nothing about this one.
  if marks[i] == 1 then redis.call('DEL', KEYS[3 + i]) end
end
redis.call('SET', KEYS[3], table.concat(marks), 'EX', ARGV[1])
return marks
