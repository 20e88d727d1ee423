-- Move due jobs from the delayed set to the stream; what cannot be read goes to the DLQ.
-- KEYS     1 delayed (zset)   2 stream   3 dlq   4 dix (hash: job id -> due ms)   5 events
-- ARGV     1 page_max   2 bytes_max   3 events_max (0: no events)
-- RETURNS  {moved, depth, oldest_lag_ms, bad, {ids of moved jobs that dix may not have known, ...},
--          untold, now_ms, when the first that is left is due in ms (-1: nothing waits)};
--          untold counts events that the server refused.
-- SETTLES  two promoters at once: whoever removes a member moves it.
local byte, sub, call, try = string.byte, string.sub, redis.call, redis.pcall
-- Members that one call looks at beside those that it moves.
local LOOKS_MAX = 256
local delayed, stream, dlq, dix, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- A stream of the wrong type must fail before the first write. The DLQ is only for what cannot be
-- read, so that no other job waits for it.
call('XLEN', stream)
-- With as many entries in dix as members, each member has its own, unless entries of jobs that are
-- gone make up for members without one. To compare always would cost a promotion a tenth.
local is_paired = call('HLEN', dix) == call('ZCARD', delayed)
local time = call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now_text = string.format('%.0f', now_ms)
local page_max, bytes_max, events_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local moved, bad, bytes, unknown, untold = 0, 0, 0, {}, 0

-- First and last byte of the id, the first element of the envelope's array that begins at `from`;
-- other layouts have no index entry.
local function id_range(member, from)
  local head, size = byte(member, from, from + 1)
  if not size or head < 0x93 or head > 0x95 then return from + 2, 0 end
  if size >= 0xa0 and size <= 0xbf then return from + 2, from + 1 + size - 0xa0 end
  if size == 0xd9 then return from + 3, from + 2 + (byte(member, from + 2) or 0) end
  if size == 0xda then
    local high, low = byte(member, from + 2, from + 3)
    return from + 4, from + 3 + (high or 0) * 256 + (low or 0)
  end
  return from + 2, 0
end

-- A member is the length of its name in four bytes, the name, and the envelope. Answers all that
-- comes before the id, the name, and where envelope and id are; nothing where the name is cut off.
local function read_head(member)
  local a, b, c, d = byte(member, 1, 4)
  local cut = d and 4 + a + b * 256 + c * 65536 + d * 16777216
  if not cut or cut > #member then return nil end
  local id_first, id_last = id_range(member, cut + 1)
  return sub(member, 1, id_first - 1), sub(member, 5, cut), cut + 1, id_first, id_last
end

local function bury(member)
  bad = bad + 1
  return try('XADD', dlq, '*', 'd', member, 'source_id', '',
    'reason', 'malformed_delayed', 'detail', 'the name length does not fit the member',
    'failed_at', now_text)
end

-- An event that cannot be written must not keep its job back.
local function announce(id, name)
  local told
  if name == '' then
    told = try('XADD', events, 'MAXLEN', '~', ARGV[3], '*',
      'e', 'waiting', 'id', id, 'ts', now_text)
  else
    told = try('XADD', events, 'MAXLEN', '~', ARGV[3], '*',
      'e', 'waiting', 'id', id, 'ts', now_text, 'n', name)
  end
  if type(told) == 'table' and told.err then untold = untold + 1 end
end

-- Ids of the jobs that wait for a time; jobs of one bulk share theirs, so each is looked at once.
-- Nothing of this may fail: its page has moved already. A time that is none has no jobs. With no
-- looks left a job counts as waiting: that leaves an entry too many, which a cancel sees through.
local ids_at, looks_left = {}, LOOKS_MAX
local function waits(id, due)
  if not ids_at[due] then
    local ids, found = {}, try('ZRANGEBYSCORE', delayed, due, due, 'LIMIT', 0, looks_left)
    for _, member in ipairs(found) do
      local _, _, _, id_first, id_last = read_head(member)
      if id_first then ids[sub(member, id_first, id_last)] = true end
    end
    ids_at[due], looks_left = ids, looks_left - #found
  end
  return ids_at[due][id] or looks_left == 0
end

-- A member may carry any id: what dix says of a job that still waits is left.
local function forget_each(ids, dues)
  local known, gone = call('HMGET', dix, unpack(ids)), {}
  for i = 1, #ids do
    if not known[i] then
      unknown[#unknown + 1] = ids[i]
    elseif known[i] == dues[i] or not waits(ids[i], known[i]) then
      gone[#gone + 1] = ids[i]
    end
  end
  if #gone > 0 then call('HDEL', dix, unpack(gone)) end
end

-- A page whose members all are in dix costs one command.
local function forget(ids, dues)
  if #ids == 0 then return end
  if not is_paired then return forget_each(ids, dues) end
  if call('HDEL', dix, unpack(ids)) == #ids then return end
  for i = 1, #ids do unknown[#unknown + 1] = ids[i] end
end

-- Jobs that wait together mostly begin alike, so a head is read once and then only compared.
-- Answers how many were moved or buried, their ids and times, and what the server refused.
local function write_page(due)
  local ids, dues, head, name, from, id_first, id_last = {}, {}, nil, nil, nil, nil, nil
  local id_count, head_size = 0, 0
  for i = 1, #due, 2 do
    local member, added = due[i], nil
    if not head or sub(member, 1, head_size) ~= head then
      head, name, from, id_first, id_last = read_head(member)
      head_size = id_first and id_first - 1
    end
    if not head then
      added = bury(member)
    elseif name == '' then
      added = try('XADD', stream, '*', 'd', sub(member, from), 'due', due[i + 1])
    else
      added = try('XADD', stream, '*', 'd', sub(member, from), 'n', name, 'due', due[i + 1])
    end
    -- An id has characters, an error has none.
    if #added == 0 then return (i - 1) / 2, ids, dues, added end
    bytes = bytes + #member
    if head then
      local id = sub(member, id_first, id_last)
      if id ~= '' then
        id_count = id_count + 1
        ids[id_count], dues[id_count] = id, due[i + 1]
      end
      if events_max > 0 then announce(id, name) end
    end
  end
  return #due / 2, ids, dues, nil
end

-- What is first by score is first by rank, so a page leaves in one step; after an error
-- only what was moved before it leaves.
local function move_page(due)
  local buried = bad
  local done, ids, dues, failure = write_page(due)
  if done > 0 then call('ZREMRANGEBYRANK', delayed, 0, done - 1) end
  moved = moved + done - (bad - buried)
  forget(ids, dues)
  return failure
end

local at_end, page_size = false, 16
while not at_end and moved + bad < page_max and bytes < bytes_max do
  local page = math.min(page_size, page_max - moved - bad)
  local due = call('ZRANGEBYSCORE', delayed, '-inf', now_text, 'WITHSCORES', 'LIMIT', 0, page)
  at_end = #due < page * 2
  if moved + bad == 0 and #due > 0 then
    needs('ZREMRANGEBYRANK', delayed, 0, 0)
    needs('HDEL', dix, '')
    if not is_paired then needs('HMGET', dix, '') end
  end
  local failure = move_page(due)
  if failure then return failure end
  -- A large page costs each job less, but must not bring in much more than bytes_max.
  if bytes < bytes_max / 4 then page_size = 64 else page_size = 16 end
end
local lag_ms = 0
local oldest = call('ZRANGEBYSCORE', delayed, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
-- A score may be minus infinity, which no whole number can tell.
if oldest[2] then lag_ms = math.max(0, now_ms - math.max(0, tonumber(oldest[2]))) end
local due_ms = oldest[2] and math.max(0, math.min(2 ^ 53, tonumber(oldest[2]))) or -1
return {moved, call('ZCARD', delayed), math.floor(lag_ms), bad, unknown, untold, now_ms, due_ms}
