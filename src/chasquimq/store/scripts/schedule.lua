-- Add jobs that are not due yet: once per write token, once per own id, never above the cap.
-- KEYS     1 delayed (zset)   2 dix (hash: job id -> due ms)   3 stream   4 write token
--          then three for each job with an id of its own: uniq, dlid, didx
--          then, optional, outcome and result of each of these jobs: what a former job left there
-- ARGV     1 token_ttl_s   2 unique_for_ms
--          then for each job: envelope, name, digest ("": a fresh id), job id, ms, "at" or "in"
--          then, optional, stream_len_max (0: no cap) for jobs whose time has passed already
--          then, optional, bell (list; no key, for who may not ring it adds all the same)
-- RETURNS  "full" when those do not fit, else one mark a job:
--          1 added, 0 the same id was there, 2 the id is taken by another job
-- SETTLES  clocks that differ: the server's own time decides what is due.
local known = redis.call('GET', KEYS[4])
if known then
  local marks = {}
  for i = 1, #known do marks[i] = tonumber(string.sub(known, i, i)) end
  return marks
end
local count, rest = math.floor((#ARGV - 2) / 6), (#ARGV - 2) % 6
if count < 1 or rest > 2 then
  return redis.error_reply('ERR jobs come in sixes')
end
local cap = 0
if rest > 0 then cap = tonumber(ARGV[3 + count * 6]) end
if not cap or not (cap >= 0) then
  return redis.error_reply('ERR stream_len_max must be a count')
end
for i = 1, count do
  local ms = tonumber(ARGV[1 + i * 6])
  if not ms or not (ms >= 0 and ms < 2 ^ 53) then
    return redis.error_reply('ERR ms must be a time')
  end
end
local unique_ms = tonumber(ARGV[2])
if #KEYS > 4 and not (unique_ms and unique_ms >= 1) then
  return redis.error_reply('ERR unique_for_ms must be a time')
end
-- All is read before the first write, so that a key of the wrong type leaves no half of a bulk.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
local backlog = redis.call('XLEN', KEYS[3])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- The mark of a job with an id of its own, whose markers begin at that key.
local taken = {}
local function mark_of(at, digest)
  local first = taken[KEYS[at]] or redis.call('GET', KEYS[at])
  if first then return first == digest and 0 or 2 end
  -- The other implementation knows only this marker, and not which job it stands for.
  if redis.call('EXISTS', KEYS[at + 1]) == 1 then return 0 end
  taken[KEYS[at]] = digest
  return 1
end

local marks, dues, passed, marker = {}, {}, 0, 5
for i = 1, count do
  local at = i * 6 - 3
  local digest, due_ms = ARGV[at + 2], tonumber(ARGV[at + 4])
  if ARGV[at + 5] == 'in' then due_ms = now_ms + due_ms end
  marks[i], dues[i] = 1, due_ms
  if digest ~= '' then
    marks[i] = mark_of(marker, digest)
    marker = marker + 3
  end
  if marks[i] == 1 and due_ms <= now_ms then passed = passed + 1 end
end
if cap > 0 and passed > 0 and backlog + passed > cap then return 'full' end

local function set_markers(at, digest, member, wait_ms)
  local wait_s = math.max(1, math.floor(wait_ms / 1000))
  local ttl_s = string.format('%.0f', wait_s + 3600)
  local unique_s = string.format('%.0f', wait_s + math.ceil(unique_ms / 1000))
  redis.call('SET', KEYS[at], digest, 'PX', ARGV[2])
  redis.call('SET', KEYS[at + 1], '1', 'EX', unique_s)
  redis.call('SET', KEYS[at + 2], member, 'EX', ttl_s)
end

local left = marker
needs('ZADD', KEYS[1], 0, '')
needs('HSET', KEYS[2], '', '')
if KEYS[left] then needs('DEL', KEYS[left]) end
redis.call('SET', KEYS[4], table.concat(marks), 'EX', ARGV[1])
-- Jobs whose time has passed come first: only the stream can still refuse what it is given.
local added = {}
for i = 1, passed > 0 and count or 0 do
  if marks[i] == 1 and dues[i] <= now_ms then
    local at, entry = i * 6 - 3, nil
    local envelope, name = ARGV[at], ARGV[at + 1]
    if name == '' then
      entry = redis.pcall('XADD', KEYS[3], '*', 'd', envelope)
    else
      entry = redis.pcall('XADD', KEYS[3], '*', 'd', envelope, 'n', name)
    end
    if entry.err then
      if #added > 0 then redis.pcall('XDEL', KEYS[3], unpack(added)) end
      redis.pcall('DEL', KEYS[4])
      return entry
    end
    added[#added + 1] = entry
  end
end
marker = 5
for i = 1, count do
  local at = i * 6 - 3
  local name, digest, due_ms, is_fresh = ARGV[at + 1], ARGV[at + 2], dues[i], marks[i] == 1
  local member = struct.pack('<I4', #name) .. name .. ARGV[at]
  if is_fresh and due_ms > now_ms then
    local due = string.format('%.0f', due_ms)
    redis.call('ZADD', KEYS[1], due, member)
    -- A job with an id of its own is found through didx.
    if digest == '' then redis.call('HSET', KEYS[2], ARGV[at + 3], due) end
  end
  if digest ~= '' then
    if is_fresh then set_markers(marker, digest, member, due_ms - now_ms) end
    if is_fresh and KEYS[left + 1] then redis.call('DEL', KEYS[left], KEYS[left + 1]) end
    marker, left = marker + 3, left + 2
  end
end

local first_ms = math.huge
for i = 1, count do
  if marks[i] == 1 and dues[i] > now_ms then first_ms = math.min(first_ms, dues[i]) end
end
if rest == 2 and first_ms < math.huge then ring(first_ms, KEYS[1], ARGV[#ARGV]) end
return marks
