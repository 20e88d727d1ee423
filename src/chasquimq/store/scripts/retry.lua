-- Move failed entries on, if they are still ours: to the delayed set, or to the end of the stream.
-- KEYS     1 stream   2 delayed (zset)   3 dix (hash: job id -> due ms)
-- ARGV     1 group   2 consumer
--          then for each entry that waits: entry id, delay_ms, job id, member
--          and for each that does not: entry id, "now", name, envelope
--          then, optional, bell (list; no key, for who may not ring it retries all the same)
-- RETURNS  one mark an entry: 1 done, 0 gone (not pending), -1 not owner (somebody else holds it)
-- SETTLES  a zombie's failure: only the owner may fail an entry, and only once.
local call, match = redis.call, string.match
local stream, delayed, dix, group, consumer = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local count, rest = math.floor((#ARGV - 2) / 4), (#ARGV - 2) % 4
local last_arg = 2 + count * 4
if count < 1 or rest > 1 then
  return redis.error_reply('ERR entries come in fours')
end

local function is_time(delay)
  local ms = tonumber(delay)
  return ms and ms >= 0 and ms < 2 ^ 53
end

-- Both halves are compared: as one number they would be too large to be told apart.
local first, first_ms, first_seq, last, last_ms, last_seq
for i = 3, last_arg, 4 do
  local id, delay = ARGV[i], ARGV[i + 1]
  if delay ~= 'now' and not is_time(delay) then
    return redis.error_reply('ERR delay_ms must be a time')
  end
  local ms, seq = match(id, '^(%d+)%-(%d+)$')
  if not ms then return redis.error_reply('ERR an entry id must be two numbers') end
  ms, seq = tonumber(ms), tonumber(seq)
  if not first or ms < first_ms or (ms == first_ms and seq < first_seq) then
    first, first_ms, first_seq = id, ms, seq
  end
  if not last or ms > last_ms or (ms == last_ms and seq > last_seq) then
    last, last_ms, last_seq = id, ms, seq
  end
end
-- Keys of the wrong type must fail before the first write.
call('ZCARD', delayed)
call('HLEN', dix)
local time = call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now_text = string.format('%.0f', now_ms)

-- Entries that fail together were read together: one look tells of nearly all, and whom it
-- leaves out is asked for. An id that comes twice is gone the second time.
local known = {}
for _, held in ipairs(call('XPENDING', stream, group, first, last, count, consumer)) do
  known[held[1]] = 1
end
local function ask(id)
  local held = call('XPENDING', stream, group, id, id, 1)
  if #held == 0 then return 0 end
  return held[1][2] == consumer and 1 or -1
end

local scored, indexed, ready, first_due_ms = {}, {}, {}, math.huge
local function delay(due_ms, job_id, member)
  first_due_ms = math.min(first_due_ms, tonumber(due_ms))
  scored[#scored + 1] = due_ms
  scored[#scored + 1] = member
  if job_id == '' then return end
  indexed[#indexed + 1] = job_id
  indexed[#indexed + 1] = due_ms
end

local marks, ids = {}, {}
for i = 3, last_arg, 4 do
  local id, wait = ARGV[i], ARGV[i + 1]
  local mark = known[id] or ask(id)
  marks[#marks + 1] = mark
  if mark == 1 then
    known[id] = 0
    ids[#ids + 1] = id
    if wait == 'now' then
      ready[#ready + 1] = i + 2
    else
      delay(string.format('%.0f', now_ms + tonumber(wait)), ARGV[i + 2], ARGV[i + 3])
    end
  end
end
if #ids == 0 then return marks end
needs('XDEL', stream, '0-0')
needs('ZADD', delayed, 0, '')
if #indexed > 0 then needs('HSET', dix, '', '') end
call('XACK', stream, group, unpack(ids))
call('XDEL', stream, unpack(ids))

-- Nothing may be lost after the ack: what the stream refuses is left to promotion.
local function make_ready(name, envelope)
  local added
  if name == '' then
    added = redis.pcall('XADD', stream, '*', 'd', envelope, 'due', now_text)
  else
    added = redis.pcall('XADD', stream, '*', 'd', envelope, 'n', name, 'due', now_text)
  end
  if added.err then delay(now_text, '', struct.pack('<I4', #name) .. name .. envelope) end
end

for _, at in ipairs(ready) do make_ready(ARGV[at], ARGV[at + 1]) end
if #scored > 0 then call('ZADD', delayed, unpack(scored)) end
if #indexed > 0 then call('HSET', dix, unpack(indexed)) end
if rest == 1 and #scored > 0 then ring(first_due_ms, delayed, ARGV[#ARGV]) end
return marks
