-- Add dead jobs that were written to a file, each once.
-- KEYS     1 dlq   2 request token   then one marker for each entry
-- ARGV     1 token_ttl_s   2 marker_ttl_s   then for each entry: the id it had, its envelope, how many
--          more fields and values there are, and those
-- RETURNS  one mark an entry: 1 added, 0 it was added before, or is still there
-- SETTLES  two imports of one file: whoever sets a marker adds its entry; a resend after a lost
--          reply: it answers what the first send did. After an error nothing was added.
local known = redis.call('GET', KEYS[2])
if known then
  local marks = {}
  for i = 1, #known do marks[i] = tonumber(string.sub(known, i, i)) end
  return marks
end
local dlq, count = KEYS[1], #KEYS - 2
for i = 1, 2 do
  if not string.match(ARGV[i] or '', '^[1-9]%d*$') then
    return redis.error_reply('ERR a ttl must be a time')
  end
end

-- Where the parts of each entry begin.
local starts, at = {}, 3
for i = 1, count do
  local more = tonumber(ARGV[at + 2])
  if not more or not string.match(ARGV[at], '^%d+%-%d+$') then
    return redis.error_reply('ERR an entry has an id, an envelope and a count of fields')
  end
  starts[i], at = at, at + 3 + more
end
if count < 1 or at ~= #ARGV + 1 then
  return redis.error_reply('ERR each entry needs a marker')
end

-- An entry of the same id is another one on another server, unless it has the same envelope.
local function is_there(start)
  local id = ARGV[start]
  local found = redis.call('XRANGE', dlq, id, id, 'COUNT', 1)[1]
  if not found then return false end
  for i = 1, #found[2], 2 do
    if found[2][i] == 'd' then return found[2][i + 1] == ARGV[start + 1] end
  end
  return false
end

local marks, added, taken = {}, {}, {}
for i = 1, count do
  local marker = KEYS[2 + i]
  local is_known = taken[marker] or redis.call('EXISTS', marker) == 1 or is_there(starts[i])
  marks[i] = is_known and 0 or 1
  taken[marker] = true
end
needs('SET', KEYS[2], '')
-- The stream may refuse an entry, so all are added before the first is marked.
for i = 1, count do
  if marks[i] == 1 then
    local start = starts[i]
    local last = start + 2 + tonumber(ARGV[start + 2])
    local entry = redis.pcall('XADD', dlq, '*', 'd', ARGV[start + 1], unpack(ARGV, start + 3, last))
    if entry.err then
      if #added > 0 then redis.pcall('XDEL', dlq, unpack(added)) end
      return entry
    end
    added[#added + 1] = entry
  end
end
for i = 1, count do
  if marks[i] == 1 then redis.call('SET', KEYS[2 + i], '1', 'EX', ARGV[2]) end
end
redis.call('SET', KEYS[2], table.concat(marks), 'EX', ARGV[1])
return marks
