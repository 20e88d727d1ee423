-- Move due jobs from the delayed set to the stream; what cannot be read goes to the DLQ.
-- KEYS     1 delayed (zset)   2 stream   3 dlq   4 dix (hash: job id -> due ms)   5 events
-- ARGV     1 page_max   2 bytes_max   3 events_max (0: no events)
-- RETURNS  {moved, depth, oldest_lag_ms, bad, {job id, ...}}
-- SETTLES  two promoters at once: whoever removes a member moves it.
local function name_and_envelope(member)
  if #member < 4 then return nil end
  local a, b, c, d = string.byte(member, 1, 4)
  local size = a + b * 256 + c * 65536 + d * 16777216
  if size > #member - 4 then return nil end
  return string.sub(member, 5, 4 + size), string.sub(member, 5 + size)
end

-- The id is the first element of the envelope's array; other layouts have no index entry.
local function job_id(envelope)
  local head, size = string.byte(envelope, 1, 2)
  if not size or head < 0x93 or head > 0x95 then return '' end
  if size >= 0xa0 and size <= 0xbf then return string.sub(envelope, 3, 2 + size - 0xa0) end
  if size == 0xd9 then return string.sub(envelope, 4, 3 + (string.byte(envelope, 3) or 0)) end
  if size == 0xda then
    local high, low = string.byte(envelope, 3, 4)
    return string.sub(envelope, 5, 4 + (high or 0) * 256 + (low or 0))
  end
  return ''
end

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now_text = string.format('%.0f', now_ms)
local moved, bad, bytes, ids = 0, 0, 0, {}
local page_max, bytes_max, events_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local at_end = false
while not at_end and moved + bad < page_max and bytes < bytes_max do
  local page = math.min(16, page_max - moved - bad)
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_text, 'WITHSCORES', 'LIMIT', 0, page)
  at_end = #due < page * 2
  for i = 1, #due, 2 do
    local member, score = due[i], due[i + 1]
    local name, envelope = name_and_envelope(member)
    if name then
      local id = job_id(envelope)
      if name == '' then
        redis.call('XADD', KEYS[2], '*', 'd', envelope, 'due', score)
      else
        redis.call('XADD', KEYS[2], '*', 'd', envelope, 'n', name, 'due', score)
      end
      redis.call('ZREM', KEYS[1], member)
      if id ~= '' then redis.call('HDEL', KEYS[4], id) end
      if events_max > 0 then
        local event = {'e', 'waiting', 'id', id, 'ts', now_text}
        if name ~= '' then event[7], event[8] = 'n', name end
        redis.pcall('XADD', KEYS[5], 'MAXLEN', '~', ARGV[3], '*', unpack(event))
      end
      moved = moved + 1
      ids[moved] = id
    else
      redis.call('XADD', KEYS[3], '*', 'd', member, 'source_id', '', 'reason', 'malformed_delayed',
        'detail', 'the name length does not fit the member', 'failed_at', now_text)
      redis.call('ZREM', KEYS[1], member)
      bad = bad + 1
    end
    bytes = bytes + #member
  end
end
local lag_ms, oldest = 0, redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if oldest[2] then lag_ms = math.max(0, now_ms - tonumber(oldest[2])) end
return {moved, redis.call('ZCARD', KEYS[1]), math.floor(lag_ms), bad, ids}
