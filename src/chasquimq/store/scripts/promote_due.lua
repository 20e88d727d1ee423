-- Move due jobs from the delayed set to the stream; what cannot be read goes to the DLQ.
-- KEYS     1 delayed (zset)   2 stream   3 dlq   4 dix (hash: job id -> due ms)   5 events
-- ARGV     1 page_max   2 bytes_max   3 events_max (0: no events)
-- RETURNS  {moved, depth, oldest_lag_ms, bad, {ids of moved jobs, of pages that dix did not know
--          as a whole, ...}, untold}; untold counts events that the server refused.
-- SETTLES  two promoters at once: whoever removes a member moves it.
local byte, sub = string.byte, string.sub

-- The id is the first element of the envelope's array; other layouts have no index entry.
local function job_id(envelope)
  local head, size = byte(envelope, 1, 2)
  if not size or head < 0x93 or head > 0x95 then return '' end
  if size >= 0xa0 and size <= 0xbf then return sub(envelope, 3, 2 + size - 0xa0) end
  if size == 0xd9 then return sub(envelope, 4, 3 + (byte(envelope, 3) or 0)) end
  if size == 0xda then
    local high, low = byte(envelope, 3, 4)
    return sub(envelope, 5, 4 + (high or 0) * 256 + (low or 0))
  end
  return ''
end

-- Targets of the wrong type must fail before the first write.
redis.call('XLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
redis.call('HLEN', KEYS[4])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now_text = string.format('%.0f', now_ms)
local page_max, bytes_max, events_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local moved, bad, bytes, unknown, untold = 0, 0, 0, {}, 0

-- An event that cannot be written must not keep its job back.
local function announce(id, name)
  local told
  if name == '' then
    told = redis.pcall('XADD', KEYS[5], 'MAXLEN', '~', ARGV[3], '*',
      'e', 'waiting', 'id', id, 'ts', now_text)
  else
    told = redis.pcall('XADD', KEYS[5], 'MAXLEN', '~', ARGV[3], '*',
      'e', 'waiting', 'id', id, 'ts', now_text, 'n', name)
  end
  if type(told) == 'table' and told.err then untold = untold + 1 end
end

local function bury(member)
  bad = bad + 1
  local added = redis.pcall('XADD', KEYS[3], '*', 'd', member, 'source_id', '',
    'reason', 'malformed_delayed', 'detail', 'the name length does not fit the member',
    'failed_at', now_text)
  return added.err and added
end

-- A member is the length of its name in four bytes, the name, and the envelope. Answers an error.
local function move(member, score, ids)
  local a, b, c, d = byte(member, 1, 4)
  local cut = d and 4 + a + b * 256 + c * 65536 + d * 16777216
  if not cut or cut > #member then return bury(member) end
  local name, envelope, added = sub(member, 5, cut), sub(member, cut + 1), nil
  if cut == 4 then
    added = redis.pcall('XADD', KEYS[2], '*', 'd', envelope, 'due', score)
  else
    added = redis.pcall('XADD', KEYS[2], '*', 'd', envelope, 'n', name, 'due', score)
  end
  -- An id is a string and has no err.
  if added.err then return added end
  local id = job_id(envelope)
  if id ~= '' then ids[#ids + 1] = id end
  if events_max > 0 then announce(id, name) end
  moved = moved + 1
end

-- A page of jobs that dix knew costs one command; only where some were unknown, all are named.
local function forget(ids)
  if #ids == 0 then return end
  if redis.call('HDEL', KEYS[4], unpack(ids)) == #ids then return end
  for i = 1, #ids do unknown[#unknown + 1] = ids[i] end
end

-- What is first by score is first by rank, so a page leaves in one step; after an error
-- only what was moved before it leaves.
local function move_page(due)
  local ids, done, failure = {}, 0, nil
  for i = 1, #due, 2 do
    local answer = move(due[i], due[i + 1], ids)
    if answer then failure = answer break end
    bytes = bytes + #due[i]
    done = done + 1
  end
  if done > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, done - 1) end
  forget(ids)
  return failure
end

local at_end, page_size = false, 16
while not at_end and moved + bad < page_max and bytes < bytes_max do
  local page = math.min(page_size, page_max - moved - bad)
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_text, 'WITHSCORES', 'LIMIT', 0, page)
  at_end = #due < page * 2
  local failure = move_page(due)
  if failure then return failure end
  -- A large page costs each job less, but must not bring in much more than bytes_max.
  if bytes < bytes_max / 4 then page_size = 64 else page_size = 16 end
end
local lag_ms, oldest = 0, redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
-- A score may be minus infinity, which no whole number can tell.
if oldest[2] then lag_ms = math.max(0, now_ms - math.max(0, tonumber(oldest[2]))) end
return {moved, redis.call('ZCARD', KEYS[1]), math.floor(lag_ms), bad, unknown, untold}
