-- Remove delayed jobs before they are due.
-- KEYS     1 delayed (zset)   2 dix (hash: job id -> due ms)   3 request token
--          then three for each job: didx, dlid, uniq
-- ARGV     1 token_ttl_s   then the job ids   then, for one job, where to go on looking
-- RETURNS  one mark a job: 1 removed, it will never run; 0 nothing was there to remove
--          or {"more", where to go on}: nothing was done, ask for each job alone
-- SETTLES  a resend after a lost reply: it answers what the first send did.
local known = redis.call('GET', KEYS[3])
if known then
  local marks = {}
  for i = 1, #known do marks[i] = tonumber(string.sub(known, i, i)) end
  return marks
end
local byte, sub, call = string.byte, string.sub, redis.call
local delayed, dix, count = KEYS[1], KEYS[2], (#KEYS - 3) / 3
-- One call looks at so many members at most, each in about two microseconds.
local LOOKS_MAX = 1500
-- So few jobs of one time are read at once.
local PAGE_MAX = 32
local looks, cursor = 0, ARGV[2 + count]

local function look(rank)
  looks = looks + 1
  return call('ZRANGE', delayed, rank, rank)[1] or ''
end

-- Where the envelope behind the name begins, or nil.
local function envelope_at(member)
  local a, b, c, d = byte(member, 1, 4)
  local from = d and 5 + a + b * 256 + c * 65536 + d * 16777216
  return from and from < #member and from or nil
end

-- The job id inside a member, or nil: the first element of the envelope.
local function id_of(member)
  local from = envelope_at(member)
  local size = from and byte(member, from + 1)
  if not size then return nil end
  if size >= 0xa0 and size <= 0xbf then
    return sub(member, from + 2, from + 1 + size - 0xa0)
  end
  if size == 0xd9 then
    return sub(member, from + 3, from + 2 + (byte(member, from + 2) or 0))
  end
  if size == 0xda then
    local high, low = byte(member, from + 2, from + 3)
    return sub(member, from + 4, from + 3 + (high or 0) * 256 + (low or 0))
  end
  return nil
end

-- All ways to write an id, the shortest first.
local function spellings(id)
  local size, found = #id, {}
  if size < 32 then found[1] = string.char(0xa0 + size) .. id end
  if size < 256 then found[#found + 1] = string.char(0xd9, size) .. id end
  found[#found + 1] = string.char(0xda, math.floor(size / 256) % 256, size % 256) .. id
  return found
end

-- By bytes, as the server sorts; Lua's own comparison follows the language of the machine. The first
-- `same` bytes are known to be equal.
local function is_before(member, target, same)
  for i = same + 1, #target do
    local one, two = byte(member, i), byte(target, i)
    if one ~= two then return not one or one < two end
  end
  return false
end

-- The first rank that is not before the target; `high` if there is none.
local function bisect(target, same, low, high)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_before(look(middle), target, same) then low = middle + 1 else high = middle end
  end
  return low
end

-- The first rank behind those that begin like the one at `low`. The end and near ranks are tried
-- first: most often there is one name, or there are few jobs of each.
local function rank_behind(prefix, low, high)
  local size, step = #prefix, 1
  if sub(look(high - 1), 1, size) == prefix then return high end
  high = high - 1
  while low + step < high and sub(look(low + step), 1, size) == prefix do
    low, step = low + step, step * 4
  end
  low, high = low + 1, math.min(low + step, high)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if sub(look(middle), 1, size) == prefix then low = middle + 1 else high = middle end
  end
  return low
end

-- Jobs of one time are sorted by name, then by id: names are few, and each is searched by halves.
-- Answers the member, or where to go on when too much was looked at.
local function search(id, low, high)
  local spelled = spellings(id)
  if cursor then low = bisect(cursor, 0, low, high) end
  while low < high do
    local member = look(low)
    if looks > LOOKS_MAX then return nil, member end
    local from = envelope_at(member)
    local prefix = from and sub(member, 1, from)
    local stop = from and rank_behind(prefix, low, high) or low + 1
    for i = 1, from and #spelled or 0 do
      local target = prefix .. spelled[i]
      local rank = bisect(target, from, low, stop)
      local found = rank < stop and look(rank) or ''
      if sub(found, 1, #target) == target then return found end
    end
    low = stop
  end
end

-- Jobs of one bulk often share their due time, so each is counted once a call.
local ranges, pages = {}, {}
local function range_of(due)
  if not ranges[due] then
    local low = call('ZCOUNT', delayed, '-inf', '(' .. due)
    ranges[due] = { low, low + call('ZCOUNT', delayed, due, due) }
  end
  return unpack(ranges[due])
end

local function in_page(id, due, low, high)
  if not pages[due] then
    pages[due] = {}
    for _, member in ipairs(call('ZRANGE', delayed, low, high - 1)) do
      local owner = id_of(member)
      if owner then pages[due][owner] = member end
    end
  end
  return pages[due][id]
end

local function find(id, didx)
  local member = call('GET', didx)
  if member and call('ZSCORE', delayed, member) then return member end
  local due = call('HGET', dix, id)
  -- A time that is none has no jobs.
  if not due or not string.find(due, '^%d+$') then return nil end
  local low, high = range_of(due)
  if low == high then return nil end
  if high - low <= PAGE_MAX then return in_page(id, due, low, high) end
  return search(id, low, high)
end

-- Keys of the wrong type must fail before the first write, and so must a right that is missing.
call('ZCARD', delayed)
call('HLEN', dix)
needs('ZREM', delayed, '')
needs('HDEL', dix, '')
needs('DEL', KEYS[4])
needs('SET', KEYS[3], '')
local members = {}
for i = 1, count do
  local member, rest = find(ARGV[1 + i], KEYS[1 + i * 3])
  if rest then return { 'more', rest } end
  members[i] = member or false
end
local marks = {}
for i = 1, count do
  local at = 1 + i * 3
  marks[i] = members[i] and call('ZREM', delayed, members[i]) or 0
  if marks[i] == 1 then
    call('HDEL', dix, ARGV[1 + i])
    call('DEL', KEYS[at], KEYS[at + 1], KEYS[at + 2])
  end
end
call('SET', KEYS[3], table.concat(marks), 'EX', ARGV[1])
return marks
